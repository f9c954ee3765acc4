"""A recurrent drafter changes no bit of what the model says, whatever runs beside it; it takes fewer steps."""

import pytest
from safetensors.numpy import load_file

from exactness import heads
from exactness.harness import House
from exactness.models import write_odd
from exactness.recurrent_heads import LENGTH, write_recurrent
from octavo.drafters.recurrent import RecurrentDrafter

SHAPES = {
    "tree": {"rnn": True, "beam_width": 4, "beam_length": LENGTH},
    "chain": {"rnn": False, "beam_width": 1, "beam_length": LENGTH},
}


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
