"""The reference's unpacking of logical weights equals the native one bit for bit, for every kind and scale code."""

from dataclasses import replace

import numpy as np
import pytest

from octavo.backends.reference.tensors import to_float
from octavo.weights.kinds import Tensor, dequantize

ROWS, COLUMNS = 5, 512


def half(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16).view(np.uint16)


def tensor(kind, group, *, two_level=False, bias=True, signed=False):
    rng = np.random.default_rng(group)
    shape, groups = (ROWS, COLUMNS), COLUMNS // group
    if kind == "u4":
        data = rng.integers(0, 256, (ROWS, COLUMNS // 2)).astype(np.uint8)
    else:
        data = rng.integers(-128, 128, shape).astype(np.int8)
    offset = 8 if kind == "u4" else 16
    if not two_level:
        biases = half(rng, ROWS, groups) if bias else None
        return Tensor(kind, shape, data, group, offset, half(rng, ROWS, groups), biases)
    inner = rng.integers(-128, 128, (ROWS, groups)).astype(np.int8)
    scale = inner if signed else inner.view(np.uint8)
    minimum = rng.integers(0, 64, (ROWS, groups)).astype(np.uint8) if bias else None
    supers = half(rng, ROWS, COLUMNS // 256), half(rng, ROWS, COLUMNS // 256) if bias else None
    return Tensor(kind, shape, data, group, offset, scale, minimum, *supers)


@pytest.mark.parametrize("kind", ["u4", "i8"])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("code", ["f16", "unsigned", "signed"])
def test_integers(kind, group, bias, code):
    held = tensor(kind, group, two_level=code != "f16", bias=bias, signed=code == "signed")
    got = to_float(held).numpy()
    assert np.array_equal(got, dequantize(held))
    assert got.std() > 0


def test_floats():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F00, (3, 8)).astype(np.uint16)
    bf16, f32 = Tensor("bf16", (3, 8), bits), Tensor("f32", (8,), rng.standard_normal(8, dtype=np.float32))
    assert np.array_equal(to_float(bf16).numpy().view(np.uint32), bits.astype(np.uint32) << 16)
    assert np.array_equal(to_float(f32).numpy(), f32.data)


@pytest.mark.parametrize("kind", ["u4", "i8"])
@pytest.mark.parametrize("code", ["f16", "f32", "e8m0"])
@pytest.mark.parametrize("zeros", [True, False])
def test_scales_with_zero_points(kind, code, zeros):
    rng, plain = np.random.default_rng(3), tensor(kind, 64, bias=False)
    scale = {
        "f16": half(rng, ROWS, 8),
        "f32": rng.standard_normal((ROWS, 8), dtype=np.float32),
        "e8m0": np.append(np.arange(100, 138), [0, 255]).astype(np.uint8).reshape(ROWS, 8),
    }[code]
    zero = rng.integers(-128, 257, (ROWS, 8)).astype(np.int16) if zeros else None
    held = replace(plain, scale=scale, zero=zero)
    got = to_float(held).numpy()
    assert np.array_equal(got, dequantize(held))
    assert np.isfinite(got[:4]).all() and got.any()
    if zeros:
        assert not np.array_equal(got, dequantize(replace(held, zero=zero + 1)))
