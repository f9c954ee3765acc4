"""Medusa heads give what their formulas say, make trees of what they hold likely, and refuse what does not fit."""

import numpy as np
import pytest
import torch
from exactness import heads
from exactness.harness import House, request
from exactness.models import ODD, write_odd
from safetensors.numpy import load_file, save_file

from octavo.drafters.medusa import MedusaDrafter
from octavo.errors import BadFileError, ConfigError

WIDTH, VOCAB, HEADS, LAYERS = ODD["hidden_size"], ODD["vocab_size"], 3, 2
CONFIG = {"architectures": ["MedusaModel"], "medusa_num_heads": HEADS, "medusa_num_layers": LAYERS}


def random_tensors(prefix="", vocab=VOCAB):
    rng = np.random.default_rng(3)
    tensors = {}
    for head in range(HEADS):
        for layer in range(LAYERS):
            key = f"{prefix}{head}.{layer}.linear"
            tensors[f"{key}.weight"] = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
            tensors[f"{key}.bias"] = rng.standard_normal(WIDTH).astype(np.float32)
        tensors[f"{prefix}{head}.{LAYERS}.weight"] = rng.standard_normal((vocab, WIDTH)).astype(np.float32)
    return tensors


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_odd(tmp_path_factory.mktemp("odd"))


def formula(tensors, head, states):
    x = torch.from_numpy(states)
    for layer in range(LAYERS):
        w, b = (torch.from_numpy(tensors[f"{head}.{layer}.linear.{name}"]) for name in ("weight", "bias"))
        x = x + torch.nn.functional.silu(x @ w.T + b)
    return (x @ torch.from_numpy(tensors[f"{head}.{LAYERS}.weight"]).T).numpy()


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_logits_are_the_formulas(model, tmp_path, executor):
    folder = heads.write(tmp_path / "head", CONFIG, random_tensors())
    views = {"medusa": [heads.STATE, *(f"medusa.{head}" for head in range(HEADS))]}
    options = {"executor": executor, "threads": 1}
    watched = heads.Watched(heads.open_head(MedusaDrafter, folder, model, **options), views)
    house = House(model, drafter=watched, **options)
    house.run([request(f"r{i}", range(3, 9 + i), tokens=4) for i in range(3)])
    house.close()
    assert len(watched.seen) >= 2
    tensors = random_tensors()
    for _, tokens, sources, values in watched.seen:
        assert len(tokens) == len(sources) == len(values["medusa.0"])
        for head in range(HEADS):
            wanted = formula(tensors, head, values[heads.STATE][sources])
            error = np.abs(values[f"medusa.{head}"] - wanted).max() / np.abs(wanted).max()
            assert error < (1e-5 if executor == "reference" else 2e-2)


def test_merged_checkpoints_and_shards_are_read_alike(model, tmp_path):
    folder = heads.write(tmp_path / "plain", CONFIG, random_tensors())
    merged = heads.write(
        tmp_path / "merged", CONFIG, random_tensors("medusa_head.") | {"lm_head.weight": np.ones((2, 2))}
    )
    shards = heads.write(tmp_path / "shards", CONFIG, random_tensors())
    tensors = load_file(shards / "model.safetensors")
    (shards / "model.safetensors").unlink()
    parts = {"a.safetensors": [name for name in tensors if name[0] == "0"]}
    parts["b.safetensors"] = [name for name in tensors if name[0] != "0"]
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, shards / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (shards / "model.safetensors.index.json").write_text(heads.json.dumps(index))
    drafters = [heads.open_head(MedusaDrafter, path, model) for path in (folder, merged, shards)]
    weights = drafters[0].programs["medusa"].weights.values()
    assert len(weights) == HEADS * (2 * LAYERS + 1)
    for weight in weights:
        places = [drafter.tensor(weight) for drafter in drafters]
        first, *others = (place.checkpoint.read(place.name).data for place in places)
        assert all(np.array_equal(first, other) for other in others)


def test_a_vocabulary_of_its_own_is_the_targets_tokens(model, tmp_path):
    """Heads over 40 tokens, 150 and on of the target's: all that they propose lies there."""
    shifts = np.full(40, 150, np.int64)
    folder = heads.write(tmp_path / "head", CONFIG, random_tensors(vocab=40) | {"d2t": shifts})
    drafter = heads.open_head(MedusaDrafter, folder, model)
    proposed = []

    class Kept(heads.Watched):
        def propose(self, session, rows):
            found = super().propose(session, rows)
            proposed.extend(token for proposal in found for token in proposal.token_ids)
            return found

    house = House(model, drafter=Kept(drafter), threads=1)
    house.run([request("r", range(3, 9), tokens=6), request("s", range(3, 20), tokens=6, temperature=1.0)])
    house.close()
    assert len(set(proposed)) > 5 and set(proposed) <= set(range(150, 190))


def test_numbers_that_are_not_finite_change_no_text(model, tmp_path):
    def outputs(drafter):
        house = House(model, drafter=drafter, threads=1)
        run = house.run([request(f"r{i}", range(3, 9 + i), tokens=6, temperature=i / 2) for i in range(3)])
        house.close()
        return run.outputs

    broken = random_tensors()
    broken[f"1.{LAYERS}.weight"][:] = np.nan
    folder = heads.write(tmp_path / "head", CONFIG, broken)
    assert outputs(heads.open_head(MedusaDrafter, folder, model)) == outputs(None)


BROKEN = {
    "narrow": (CONFIG, {"0.0.linear.weight": np.ones((8, 8))}, ConfigError, "file holds [8, 8]"),
    "states": (CONFIG, {"0.2.weight": np.ones((VOCAB, 64))}, ConfigError, "hidden states of 64; the target's is 72"),
    "vocabulary": (
        CONFIG,
        {f"{head}.2.weight": np.ones((500, WIDTH)) for head in range(HEADS)},
        ConfigError,
        "a vocabulary of 500; the target's is 211",
    ),
    "lacking": (CONFIG | {"medusa_num_heads": 4}, {}, BadFileError, "lacks 3.0.linear.weight"),
    "more": (CONFIG | {"medusa_num_heads": 2}, {}, BadFileError, "holds 2.0.linear.bias"),
    "layers": (CONFIG | {"medusa_num_layers": 3}, {}, BadFileError, "lacks 0.3.weight"),
    "many": (CONFIG | {"medusa_num_heads": 99}, {}, ConfigError, "medusa_num_heads 99: at most"),
    "none": (CONFIG | {"medusa_num_heads": 0}, {}, ConfigError, "medusa_num_heads must be"),
    "nodes": (CONFIG | {"medusa_tree_nodes": 64}, {}, ConfigError, "medusa_tree_nodes 64: at most 63"),
    "shifts": (CONFIG, {"d2t": np.zeros(5, np.int64)}, BadFileError, "d2t is I64 [5], not I64 [211]"),
    "outside": (
        CONFIG,
        {"d2t": np.full(VOCAB, 1, np.int64)},
        ConfigError,
        "d2t leads to token 211; the target has",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_is_refused_in_one_line(model, tmp_path, name):
    config, tensors, error, words = BROKEN[name]
    whole = random_tensors() | {
        key: array if array.dtype == np.int64 else array.astype(np.float32) for key, array in tensors.items()
    }
    folder = heads.write(tmp_path / "head", config, whole)
    with pytest.raises(error) as raised:
        heads.open_head(MedusaDrafter, folder, model)
    assert words in raised.value.message and str(folder) in raised.value.message
    assert "\n" not in raised.value.message
