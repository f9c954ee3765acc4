"""A recurrent drafter changes no bit of what the model says, whatever runs beside it; it takes fewer steps."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from exactness import heads
from exactness.harness import House
from exactness.models import write_odd
from octavo.drafters.recurrent import RecurrentDrafter

INNER, LENGTH = 300, 3
SHAPES = {
    "tree": {"rnn": True, "beam_width": 4, "beam_length": LENGTH},
    "chain": {"rnn": False, "beam_width": 1, "beam_length": LENGTH},
}


def silu(x):
    return x / (1 + np.exp(-x))


def write_recurrent(folder, embedding, outputs, states, config):
    """Random weights up to the last matrix, which is fitted to what they make of the plain run."""
    rng = np.random.default_rng(2)
    width = embedding.shape[1]

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    tensors = {"input_proj.weight": 2 * matrix(INNER, 2 * width), "input_proj.bias": matrix(1, INNER)[0]}
    tensors |= {"lm_head.0.linear.weight": 2 * matrix(INNER, INNER), "lm_head.0.linear.bias": matrix(1, INNER)[0]}
    if config["rnn"]:
        tensors |= {"rnn_w.weight": 3 * matrix(width, width), "rnn_u.weight": matrix(width, width)}
        tensors["rnn_u.bias"] = matrix(1, width)[0]
    features, labels = [], []
    for (name, n), h in states.items():
        state = np.zeros(width, np.float32)
        for step in range(min(LENGTH, len(outputs[name]) - n)):
            token = embedding[outputs[name][n - 1 + step]]
            state = state + token
            if config["rnn"]:
                state = silu(
                    tensors["rnn_w.weight"] @ token + tensors["rnn_u.weight"] @ (state - token) + tensors["rnn_u.bias"]
                )
            x = tensors["input_proj.weight"] @ np.concatenate((h, state)) + tensors["input_proj.bias"]
            features.append(x + silu(tensors["lm_head.0.linear.weight"] @ x + tensors["lm_head.0.linear.bias"]))
            labels.append(outputs[name][n + step])
    tensors["lm_head.1.weight"] = heads.fitted(features, labels, heads.VOCAB)
    return heads.write(folder, {"architectures": ["ReDrafterModel"], "num_draft_layers": 1, **config}, tensors)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_odd(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def plain(model):
    return heads.plain_run(model)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request):
    return request.param


@pytest.fixture(scope="module")
def folder(model, plain, shape, tmp_path_factory):
    run, _, states = plain
    embedding = load_file(f"{model}/model.safetensors")["model.embed_tokens.weight"]
    return write_recurrent(tmp_path_factory.mktemp(shape), embedding, run.outputs, states, SHAPES[shape])


@pytest.mark.parametrize("condition", heads.CONDITIONS)
def test_recurrence_changes_nothing(model, plain, folder, shape, condition):
    options = {name: value for name, value in heads.CONDITIONS[condition].items() if name != "poison"}
    drafter = heads.Watched(heads.open_head(RecurrentDrafter, folder, model, **options))
    heads.unchanged(model, drafter, plain, condition)
    assert drafter.drafted > 60 and drafter.deep >= drafter.drafted / 5
    assert (drafter.aside >= 5) == (shape == "tree")


def test_alone_it_takes_fewer_steps(model, plain, folder):
    run = plain[0]
    drafter = heads.open_head(RecurrentDrafter, folder, model)
    house = House(model, drafter=drafter, enable_prefix_caching=False, threads=1)
    steps = 0
    for one in heads.asked():
        alone = house.run([one])
        assert alone.outputs[one.id] == run.outputs[one.id]
        steps += alone.stats["steps"]
    assert steps < 0.8 * sum(map(len, run.outputs.values()))
    house.close()
