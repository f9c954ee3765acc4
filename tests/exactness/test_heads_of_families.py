"""Draft heads over every family: what feeds them is found in each program, recurrent state takes their trees back."""

import numpy as np
import pytest

from exactness import heads
from exactness.families import FAMILIES, write_family
from exactness.harness import House, check, request, subjects
from exactness.models import smollm2
from octavo.drafters.medusa import MedusaDrafter
from octavo.drafters.recurrent import RecurrentDrafter

TOKENS = 16


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_change_no_bit(name, tmp_path):
    model, config = write_family(name, tmp_path), FAMILIES[name]
    vocab, width = config["vocab_size"], config.get("hidden_size", config.get("n_embd"))
    recorder = heads.Recorder()
    house = House(model, drafter=recorder, enable_prefix_caching=False, threads=1, num_blocks=200)
    plain = house.run(subjects(vocab, tokens=TOKENS))
    house.close()
    folder = heads.write_medusa(tmp_path / "medusa", plain.outputs, recorder.states, vocab)
    drafter = heads.Watched(heads.open_head(MedusaDrafter, folder, model))
    accepted(model, drafter, plain, vocab)
    assert drafter.deep >= drafter.drafted / 5 and drafter.aside > 0
    rng = np.random.default_rng(1)
    tensors = {
        "lm_head.0.linear.weight": np.zeros((2 * width, 2 * width), np.float32),
        "lm_head.0.linear.bias": np.zeros(2 * width, np.float32),
        "lm_head.1.weight": rng.standard_normal((vocab, 2 * width)).astype(np.float32),
    }
    said = {"architectures": ["ReDrafterModel"], "num_draft_layers": 1, "rnn": False}
    folder = heads.write(tmp_path / "recurrent", said, tensors)
    drafter = heads.Watched(heads.open_head(RecurrentDrafter, folder, model))
    accepted(model, drafter, plain, vocab)


def accepted(model, drafter, plain, vocab):
    house = House(model, drafter=drafter, poison=True, threads=1, num_blocks=200, max_num_batched_tokens=60)
    run = house.run(subjects(vocab, tokens=TOKENS))
    house.close()
    assert drafter.drafted > 20 and run.stats["drafts_rejected"] > 0
    check(run, plain)


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
