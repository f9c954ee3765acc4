"""Preparing weights moves rows, in every kind: to half-split order, some rows of each head, stacks of heads."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_toys import random_blocks, same_bits

from octavo.errors import ConfigError, UnsupportedError
from octavo.weights.kinds import Tensor, dequantize
from octavo.weights.prepare import by_rows, prepare, prepared_shape
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


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "BF16", "F32"])
def test_ranges_of_every_head_come_range_by_range(name):
    raw = random_blocks(name, ROWS, COLUMNS, seed=2)
    whole = SCHEMES[name].unpack(raw.reshape(-1), (ROWS, COLUMNS))
    prep = (("head_rows", 3, 0, 2, 5, 8),)
    out = prepare(whole, prep)
    want = [0, 1, 8, 9, 16, 17, 5, 6, 7, 13, 14, 15, 21, 22, 23]
    assert out.shape == (15, COLUMNS) == prepared_shape((ROWS, COLUMNS), prep) and by_rows(prep)
    assert same_bits(dequantize(out), dequantize(whole)[want])
    for heads, end in ((5, 2), (3, 9)):
        with pytest.raises(ConfigError, match="24 rows are not"):
            prepare(whole, (("head_rows", heads, 0, end),))


@pytest.mark.parametrize("heads", [0, 5, 24])
def test_rows_that_are_no_heads(heads):
    with pytest.raises(ConfigError, match="24 rows"):
        prepare(Tensor("f32", (ROWS,), np.zeros(ROWS, np.float32)), (("unpermute_rope", heads),))


def test_an_unknown_step_is_named():
    with pytest.raises(ConfigError, match="scramble"):
        prepare(Tensor("f32", (2,), np.zeros(2, np.float32)), (("scramble",),))


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q4_K", "BF16"])
@pytest.mark.parametrize(("begin", "end"), [(0, 5), (5, 8)])
def test_some_rows_of_each_head(name, begin, end):
    raw = random_blocks(name, ROWS, COLUMNS, seed=2)
    whole = SCHEMES[name].unpack(raw.reshape(-1), (ROWS, COLUMNS))
    step = ("head_rows", HEADS, begin, end)
    out = prepare(whole, (step,))
    assert out.shape == prepared_shape(whole.shape, (step,)) == (HEADS * (end - begin), COLUMNS)
    want = dequantize(whole).reshape(HEADS, ROWS // HEADS, COLUMNS)[:, begin:end]
    assert same_bits(dequantize(out), np.ascontiguousarray(want.reshape(out.shape)))


def test_pairs_of_the_first_rows_of_each_head_alone():
    rows = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    stored = rows.reshape(HEADS, 8, 2).copy()
    stored[:, :4] = np.stack([interleave(head[:4], 1) for head in rows.reshape(HEADS, 8, 2)])
    out = prepare(Tensor("f32", rows.shape, stored.reshape(ROWS, 2)), (("unpermute_rope", HEADS, 4),))
    assert np.array_equal(out.data, rows) and not np.array_equal(stored.reshape(ROWS, 2), rows)


def test_each_head_is_turned():
    rows = np.random.default_rng(0).standard_normal((ROWS, 5)).astype(np.float32)
    out = prepare(Tensor("f32", rows.shape, rows), (("transpose_heads", HEADS),))
    assert out.shape == prepared_shape(rows.shape, (("transpose_heads", HEADS),)) == (HEADS * 5, ROWS // HEADS)
    for head in range(HEADS):
        assert np.array_equal(out.data[head * 5 : head * 5 + 5], rows[head * 8 : head * 8 + 8].T)


def test_a_stack_of_heads_becomes_rows():
    raw = random_blocks("Q8_0", ROWS, COLUMNS, seed=3)
    stacked = SCHEMES["Q8_0"].unpack(raw.reshape(-1), (HEADS, ROWS // HEADS, COLUMNS))
    out = prepare(stacked, (("flatten_heads",),))
    assert out.shape == prepared_shape(stacked.shape, (("flatten_heads",),)) == (ROWS, COLUMNS)
    assert same_bits(dequantize(out), dequantize(SCHEMES["Q8_0"].unpack(raw.reshape(-1), (ROWS, COLUMNS))))


def test_integers_are_not_turned_and_heads_must_fit():
    raw = random_blocks("Q8_0", ROWS, COLUMNS, seed=3)
    whole = SCHEMES["Q8_0"].unpack(raw.reshape(-1), (ROWS, COLUMNS))
    with pytest.raises(UnsupportedError, match="i8 weights"):
        prepare(whole, (("transpose_heads", HEADS),))
    for step in (("head_rows", 5, 0, 1), ("head_rows", HEADS, 0, 9), ("transpose_heads", 7)):
        with pytest.raises(ConfigError):
            prepared_shape((ROWS, COLUMNS), (step,))


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K"])
def test_integers_can_be_read_as_bf16(name):
    raw = random_blocks(name, ROWS, COLUMNS, seed=4)
    scheme, shape = SCHEMES[name], (ROWS, COLUMNS)
    out = scheme.read(raw.reshape(-1), shape, "bf16")
    assert out.kind == "bf16" and scheme.bytes_as("bf16", shape) == out.nbytes
    exact = dequantize(scheme.unpack(raw.reshape(-1), shape))
    bits, finite = exact.view(np.uint32).astype(np.uint64), np.isfinite(exact)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    assert finite.mean() > 0.5 and np.array_equal(out.data[finite], rounded[finite])


def test_rates_become_their_logarithms_and_must_decay():
    held = prepare(Tensor("f32", (3,), -np.exp(np.array([0.5, -2.0, 3.0], np.float32))), (("rates",),))
    assert np.abs(held.data - [0.5, -2.0, 3.0]).max() < 1e-6 and held.data.dtype == np.float32
    for bad in (0.0, 1.0, np.nan):
        with pytest.raises(ConfigError, match="not below 0"):
            prepare(Tensor("f32", (2,), np.array([-1.0, bad], np.float32)), (("rates",),))


def test_taps_get_the_axis_that_folders_have():
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    held = prepare(Tensor("f32", (4, 3), data), (("taps",),))
    assert held.shape == held.data.shape == (4, 1, 3) == prepared_shape((4, 3), (("taps",),))
    assert (held.data[:, 0] == data).all() and not by_rows((("taps",),))
