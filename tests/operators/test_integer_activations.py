"""Operators that write integer activations against their reference twins, read back through an identity.

Both executors run one lowered program. Where the float under the rounding differs in its last bits, an integer may fall
to the other side: a step of its scale, rarely.
"""

import numpy as np
import pytest
from forced import Forced
from stepping import Run, Stepper
from test_operators import Bench, native, rows

from octavo.backends import executor_for
from octavo.types import KVGroup
from octavo.weights.kinds import Tensor

MIXED = "16383 steps of the quarter of a row's blocks with the largest tops, 127 of the others"


class Twin:
    """An executor that lowers with integer activations."""

    def __init__(self, executor, activations):
        self.executor, self.activations = executor, activations
        self.open = executor.open

    def lower(self, program, kinds):
        return self.executor.lower(program, kinds, activations=self.activations)


@pytest.fixture(params=native.usable_isas())
def isa(request):
    return request.param


def identity(bench: Bench, name: str, width: int) -> str:
    """W with W x = x: i8, one group of 32 columns at a time, scale 1."""
    scale = np.full((width, width // 32), 1, np.float16).view(np.uint16)
    bench.tensors[name] = Tensor("i8", (width, width), np.eye(width, dtype=np.int8), 32, 0, scale)
    return bench.builder.weight(name, (width, width), hf=name, gguf=name)


def both(bench: Bench, isa: str, activations: str) -> tuple[np.ndarray, np.ndarray]:
    """Native and reference; the numerics must name the kinds."""
    bench.builder.export("logits")
    program, got = bench.builder.build(), []
    for executor in (Forced(isa, 2), executor_for("reference", "bfloat16")):
        stepper = Stepper(Twin(executor, activations), program, bench.tensors)
        bench.kinds = {op.kind for op in stepper.program.ops}
        got.append(stepper.step(Run(0, 0, tuple(range(20))), Run(1, 0, (7,))))
        assert "bf16/kv" not in stepper.session.numerics.id
    return got[0], got[1]


def near(got, want, most, same=0.97):
    """Equal but for a few that are a step of their block's scale apart. most: steps of a block's top, or MIXED."""
    tops = np.abs(want).reshape(len(want), -1, 32).max(2)
    if most == MIXED:
        heavy = -(-tops.shape[1] // 4)
        most = np.where(tops < np.sort(tops, 1)[:, -heavy:][:, :1], 127, 16383).repeat(32, 1)
    step = tops.repeat(32, 1) / most
    assert (np.abs(got - want) <= 1.01 * step + 1e-6 * np.abs(want)).all()
    assert (np.abs(got - want) <= 0.01 * step + 1e-6 * np.abs(want)).mean() > same


@pytest.mark.parametrize(("activations", "most"), [("int", 16383), ("i8g32", 127)])
def test_quantize_and_norm(isa, activations, most):
    for normed in (False, True):
        bench = Bench()
        x = bench.input("x", rows(96, scale=30.0))
        if normed:
            x = bench.builder.norm("h", x, bench.weight("w", 1 + 0.3 * rows(96)[0]), eps=1e-5, dtype="act")
        bench.builder.linear("logits", x, identity(bench, "one", 96))
        got, want = both(bench, isa, activations)
        assert ("fused.norm" in bench.kinds) == normed
        near(got, want, most, same=0.9 if normed else 1 - 1e-9)


def test_a_norm_before_others_than_the_logits(isa):
    bench = Bench()
    x = bench.input("x", rows(320, scale=30.0))
    x = bench.builder.norm("h", x, bench.weight("w", 1 + 0.3 * rows(320)[0]), eps=1e-5, dtype="act")
    m = bench.builder.linear("m", x, identity(bench, "one", 320))
    bench.builder.add("logits", m, m)
    got, want = both(bench, isa, "int")
    assert "fused.norm" in bench.kinds
    near(got / 2, want / 2, MIXED, same=0.9)


@pytest.mark.parametrize(("activations", "most"), [("int", MIXED), ("i8g32", 127)])
def test_fused_gate_up(isa, activations, most):
    bench = Bench()
    x = bench.input("x", rows(96, scale=2.0))
    gate = bench.builder.linear("gate", x, identity(bench, "wg", 96))
    up = bench.builder.linear("up", x, identity(bench, "wu", 96))
    f = bench.builder.glu("f", gate, up, act="silu")
    bench.builder.linear("logits", f, identity(bench, "one", 96))
    got, want = both(bench, isa, activations)
    assert "fused.gate_up" in bench.kinds
    near(got, want, most, same=0.9)


@pytest.mark.parametrize("d", [32, 24, 64])
@pytest.mark.parametrize("activations", ["int", "i8g32"])
def test_attention(isa, activations, d):
    """Heads of 24 are quantized by an operator of their own. P is bf16 in the native kernels, so the bound is wide."""
    bench = Bench()
    width = 4 * d
    group = bench.builder.group(KVGroup("full", "full"))
    caches = bench.builder.cache(group, "ck", width), bench.builder.cache(group, "cv", width)
    q, k, v = (bench.input(name, rows(width, seed=i)) for i, name in enumerate("qkv"))
    kv = bench.builder.kv_write("kv", k, v, *caches, kv_heads=4)
    a = bench.builder.attention("a", q, kv, cache_k=caches[0], cache_v=caches[1], heads=4, kv_heads=4, scale=d**-0.5)
    bench.builder.linear("logits", a, identity(bench, "one", width))
    got, want = both(bench, isa, activations)
    assert ("fused.attention" in bench.kinds) == (d % 32 == 0)
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
