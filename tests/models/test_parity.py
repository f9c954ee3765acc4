"""The reference executor in float32 against transformers on tiny random checkpoints: logits and greedy ids."""

import numpy as np
import pytest
from stepping import Run
from tiny import MEMBERS, ROPES, greedy_of, logits_of, prompt_of, stepper_of, twin

TOLERANCE = 1e-4
CASES = (
    [(member, "default") for member in MEMBERS]
    + [(member, rope) for member in ("llama", "qwen3") for rope in ROPES if rope != "default"]
    + [(member, "yarn-mscale") for member in ("deepseek-v2", "deepseek-v3")]
)


@pytest.fixture(scope="module", params=CASES, ids=["-".join(case) for case in CASES])
def pair(request):
    return twin(*request.param)


def test_logits_equal_whatever_the_chunk(pair):
    model, mapping = pair
    tokens = prompt_of(100)
    want = logits_of(model, tokens)
    assert want.std() >= 1
    stepper = stepper_of(model, mapping)
    for slot, chunk in enumerate((None, 33, 1)):
        got = stepper.prompt(tokens, slot=slot, chunk=chunk)
        assert np.abs(got - want).max() <= TOLERANCE


def test_greedy_ids_equal_over_64_tokens(pair):
    model, mapping = pair
    tokens = prompt_of(37, seed=1)
    want = greedy_of(model, tokens, 64)
    assert len(set(want)) > 4
    assert stepper_of(model, mapping).greedy(tokens, 64, chunk=16) == want


@pytest.mark.parametrize("member", ["mistral-window", "qwen2-window"])
@pytest.mark.parametrize("length", [7, 8, 9, 16])
def test_windows_at_their_boundary(member, length):
    """Window 8 in every layer, and in all but the first: prompts around it, then 5 tokens past it."""
    model, mapping = twin(member)
    tokens = prompt_of(length + 5, seed=3)
    stepper = stepper_of(model, mapping)
    assert {group.rule for group in stepper.program.groups} == (
        {"window"} if "mistral" in member else {"window", "full"}
    )
    got = [stepper.prompt(tokens[:length])]
    got += [stepper.step(Run(0, at, (tokens[at],))) for at in range(length, length + 5)]
    assert np.abs(np.concatenate(got) - logits_of(model, tokens)).max() <= TOLERANCE
