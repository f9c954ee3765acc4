"""unpermute_rope brings a GGUF llama's interleaved rows to half-split order, in every kind."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_toys import random_blocks, same_bits

from octavo.errors import ConfigError
from octavo.weights.kinds import Tensor, dequantize
from octavo.weights.prepare import prepare
from octavo.weights.schemes import SCHEMES

HEADS, ROWS, COLUMNS = 3, 24, 512


def interleave(half_split: np.ndarray, heads: int) -> np.ndarray:
    """What the converter to GGUF does: row j and row j + d/2 of each head come to stand side by side."""
    out = np.empty_like(half_split)
    size = len(half_split) // heads
    for head in range(heads):
        for j in range(size // 2):
            out[head * size + 2 * j] = half_split[head * size + j]
            out[head * size + 2 * j + 1] = half_split[head * size + size // 2 + j]
    return out


@pytest.mark.parametrize("heads", [1, 3, 6])
def test_undoes_the_converter(heads):
    rows = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
    stored = interleave(rows, heads)
    assert not np.array_equal(stored, rows)
    out = prepare(Tensor("f32", (ROWS, 4), stored), (("unpermute_rope", heads),))
    assert np.array_equal(out.data, rows) and out.data.flags.c_contiguous
    assert np.array_equal(stored, interleave(rows, heads)), "the input is left as it was"


def test_biases_move_alike():
    bias = np.arange(ROWS, dtype=np.float32)
    out = prepare(Tensor("f32", (ROWS,), interleave(bias, HEADS)), (("unpermute_rope", HEADS),))
    assert np.array_equal(out.data, bias)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "BF16"])
def test_scales_move_with_their_rows(name):
    raw = random_blocks(name, ROWS, COLUMNS, seed=1)
    plain = SCHEMES[name].unpack(raw.reshape(-1), (ROWS, COLUMNS))
    stored = SCHEMES[name].unpack(interleave(raw, HEADS).reshape(-1), (ROWS, COLUMNS))
    out = prepare(stored, (("unpermute_rope", HEADS),))
    assert same_bits(dequantize(out), dequantize(plain))
    assert not same_bits(dequantize(stored), dequantize(plain))
    assert out.nbytes == plain.nbytes


def test_no_steps_is_the_same_tensor():
    tensor = Tensor("f32", (2,), np.zeros(2, np.float32))
    assert prepare(tensor, ()) is tensor


@pytest.mark.parametrize("heads", [0, 5, 24])
def test_rows_that_are_no_heads(heads):
    with pytest.raises(ConfigError, match="24 rows"):
        prepare(Tensor("f32", (ROWS,), np.zeros(ROWS, np.float32)), (("unpermute_rope", heads),))


def test_an_unknown_step_is_named():
    with pytest.raises(ConfigError, match="scramble"):
        prepare(Tensor("f32", (2,), np.zeros(2, np.float32)), (("scramble",),))
