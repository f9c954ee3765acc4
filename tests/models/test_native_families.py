"""Every family on the native executor: as near to float32 as a reference that rounds alike, in any chunks."""

import numpy as np
import pytest
import torch
from stepping import Run, Stepper
from tiny import MEMBERS, ROPES, prompt_of, tensors_of, twin

from octavo.backends import executor_for
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.weights.kinds import Tensor

TOKENS = prompt_of(90, seed=9)
CASES = [(member, "default") for member in MEMBERS] + [("llama", rope) for rope in ROPES if rope != "default"]


def as_bf16(tensor, weight):
    if len(tensor.shape) == 1 or weight.plain:
        return tensor
    bits = torch.from_numpy(tensor.data).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return Tensor("bf16", tensor.shape, bits)


def sessions(member, rope="default"):
    """Steppers over the same bf16 weights: native, reference rounding as native does, reference in float32."""
    model, mapping = twin(member, rope)
    program = program_for(ModelConfig.from_mapping(mapping))
    tensors = {name: as_bf16(tensor, program.weights[name]) for name, tensor in tensors_of(model, program).items()}
    executors = executor_for("native"), executor_for("reference", "bfloat16"), executor_for("reference")
    return [Stepper(executor, program, tensors) for executor in executors]


@pytest.mark.parametrize(("member", "rope"), CASES)
def test_as_near_as_the_rounding_allows(member, rope):
    native, rounded, exact = sessions(member, rope)
    got = native.prompt(TOKENS)
    assert np.array_equal(got, native.prompt(TOKENS, slot=1, chunk=13))
    want = exact.prompt(TOKENS)
    error, allowed = np.abs(got - want).mean(), np.abs(rounded.prompt(TOKENS) - want).mean()
    assert 0 < error <= 1.3 * allowed
    # Rounded scores choose some other keys: rows that see no more than may be chosen are as near as all others'.
    choice = [op.attrs["top_k"] for op in exact.program.ops if op.kind == "index_topk"]
    assert error <= (0.1 if choice else 0.03) * want.std()
    few = choice[0] if choice else len(TOKENS)
    assert np.abs(got[:few] - want[:few]).mean() <= 0.03 * want.std()


def test_blocks_behind_a_window_may_be_gone():
    """Natively too: what lies wholly behind the window is the null block, full of NaN."""
    native, _, _ = sessions("mistral-window")
    want = native.prompt(TOKENS)
    native.prompt(TOKENS[:40], slot=1)
    native.tables = [1, 0, 0, 2, 0, 0]  # slot 1: tokens 0 .. 31 are freed; 33 on are visible to token 40
    native.session.cache_bytes()[0] = 0xFF
    assert np.array_equal(native.step(Run(1, 40, tuple(TOKENS[40:]))), want[40:])
