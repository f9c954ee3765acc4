"""Medusa heads change no bit of what the model says, whatever runs beside it, and bring it there in fewer steps."""

import pytest
from tiny_model import CONFIG, VOCAB, write_model

from exactness import heads
from exactness.harness import House, check, request
from exactness.models import smollm2, write_odd
from octavo.drafters.medusa import MedusaDrafter
from octavo.request import Structure

RANKS = {"tree": 8, "chain": 1}  # choices of a head that are looked at


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_odd(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module")
def plain(model):
    return heads.plain_run(model)


@pytest.fixture(params=RANKS)
def shape(request, monkeypatch):
    monkeypatch.setattr("octavo.drafters.medusa.RANKS", RANKS[request.param])
    return request.param


@pytest.fixture(scope="module")
def folder(plain, tmp_path_factory):
    run, _, states = plain
    return heads.write_medusa(tmp_path_factory.mktemp("heads"), run.outputs, states, heads.VOCAB)


@pytest.mark.parametrize("condition", heads.CONDITIONS)
def test_medusa_changes_nothing(model, plain, folder, shape, condition):
    drafter = heads.Watched(heads.open_head(MedusaDrafter, folder, model))
    heads.unchanged(model, drafter, plain, condition)
    assert drafter.drafted > 60 and drafter.deep >= drafter.drafted / 5
    assert (drafter.aside >= 5) == (shape == "tree")


def test_alone_it_takes_fewer_steps(model, plain, folder, shape):
    run = plain[0]
    house = House(model, drafter=heads.open_head(MedusaDrafter, folder, model), enable_prefix_caching=False, threads=1)
    steps = 0
    for one in heads.asked():
        alone = house.run([one])
        assert alone.outputs[one.id] == run.outputs[one.id]
        steps += alone.stats["steps"]
    assert steps < 0.8 * sum(map(len, run.outputs.values()))
    house.close()


def test_masks_hold_for_drafts_too(tmp_path):
    """Outputs that have a form, from a model with a tokenizer: heads fitted to what it says under their masks."""
    model = str(tmp_path)
    write_model(tmp_path)
    forms = Structure("regex", "[a-e ]{30}"), Structure("choice", '["the answer is yes", "another answer"]')

    def bound():
        lengths = enumerate((5, 17, 32, 40, 63, 9))
        made = [
            request(
                f"m{i}", [20 + i] * n, tokens=24, temperature=i % 3 / 2, seed=i, structure=forms[i % 5 == 4], logprobs=1
            )
            for i, n in lengths
        ]
        for each in made:
            each.eos_ids = (CONFIG["eos_token_id"],)
        return made

    recorder = heads.Recorder()
    house = House(model, drafter=recorder, threads=1)
    plain = house.run(bound())
    scores = heads.logprobs(house)
    house.close()
    folder = heads.write_medusa(tmp_path / "head", plain.outputs, recorder.states, VOCAB)
    drafter = heads.Watched(heads.open_head(MedusaDrafter, folder, model))
    house = House(model, drafter=drafter, threads=1)
    check(house.run(bound()), plain)
    assert heads.logprobs(house) == scores
    house.close()
    assert drafter.deep >= 10 and drafter.aside >= 1


def test_what_heads_read_changes_no_bit_of_integers():
    """The target's last state is kept as floats, and what its own head eats is still quantized alike."""
    model = smollm2()
    asked = [{"tokens": 6}, {"tokens": 6, "temperature": 1.0, "seed": 3}]

    def run(drafter):
        house = House(model, drafter=drafter)
        found = house.run([request(f"i{i}", range(3, 40 + 9 * i), **each) for i, each in enumerate(asked)])
        numerics, ops = house.parts.runner.loaded.numerics, house.parts.runner.loaded.programs["target"].ops
        house.close()
        return found, numerics, [op.kind for op in ops]

    plain, numerics, ops = run(None)
    tapped, same, apart = run(heads.Recorder())
    assert numerics == same and ops[-2:] == ["fused.norm", "linear"] and apart[-3:] == ["norm", "quantize", "linear"]
    assert tapped.outputs == plain.outputs
    check(tapped, plain)
