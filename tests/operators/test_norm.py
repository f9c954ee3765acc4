"""What float32 parity cannot show of a norm: its eps, and that it rounds once, after the weight."""

import numpy as np
import pytest
import torch
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.program.builder import Builder
from octavo.program.ir import R
from octavo.program.lower import bind, fuse, quantize
from octavo.weights.kinds import Tensor

ROWS, WIDTH = 7, 48


def run(x, weight, *, eps, heads=0, order="llama", lowered=False):
    """norm of the rows of a table, as a linear with the identity sees it."""
    b = Builder("norm")
    table = b.weight("table", x.shape, hf="t", gguf="t")
    w = b.weight("w", weight.shape, hf="w", gguf="w")
    eye = b.weight("eye", (x.shape[1],) * 2, hf="e", gguf="e")
    rows = b.take("rows", b.embed("x", "token", table), "logit_row")
    b.linear("logits", b.norm("h", rows, w, eps=eps, heads=heads, order=order, dtype="act"), eye)
    assert b.buffers["logits"].shape == (R, x.shape[1])
    b.export("logits")
    program = bind(b.build(), dict.fromkeys(("table", "w", "eye"), "f32"))
    if lowered:
        program = fuse(quantize(program))
        assert "fused.norm" in {op.kind for op in program.ops}
    arrays = {"table": x, "w": weight, "eye": np.eye(x.shape[1], dtype=np.float32)}
    tensors = {name: Tensor("f32", array.shape, array) for name, array in arrays.items()}
    return Stepper(executor_for("reference"), program, tensors, lower=False).step(Run(0, 0, tuple(range(len(x)))))


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return rng.standard_normal((ROWS, WIDTH), dtype=np.float32), rng.standard_normal(WIDTH, dtype=np.float32)


def formula(x, weight, eps):
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-2])
def test_eps_shows_on_small_rows(data, eps):
    x, weight = data[0] * 1e-3, data[1]
    np.testing.assert_allclose(run(x, weight, eps=eps), formula(x, weight, eps), rtol=2e-6)
    assert np.abs(run(x, weight, eps=eps) / formula(x, weight, eps * 2) - 1).max() > 0.01


def test_heads_are_normed_one_by_one(data):
    x, weight = data[0], data[1][:16]
    want = formula(x.reshape(ROWS, 3, 16), weight, 1e-6).reshape(ROWS, WIDTH)
    np.testing.assert_allclose(run(x, weight, eps=1e-6, heads=3), want, rtol=2e-5, atol=1e-6)


def test_gemma_order_adds_one_to_the_weight(data):
    np.testing.assert_allclose(
        run(*data, eps=1e-6, order="gemma"), formula(data[0], 1 + data[1], 1e-6), rtol=2e-5, atol=1e-6
    )


def test_lowered_norm_rounds_once_after_the_weight(data):
    """Rounding before the weight as well would differ in some element."""
    x, weight = (torch.from_numpy(array) for array in data)
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    once = (scaled * weight).bfloat16().float()
    twice = (scaled.bfloat16().float() * weight).bfloat16().float()
    got = run(*data, eps=1e-6, lowered=True)
    assert np.array_equal(got, once.numpy())
    assert not np.array_equal(got, twice.numpy())
