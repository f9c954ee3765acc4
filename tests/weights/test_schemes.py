"""Each format on disk, unpacked into its logical kind and evaluated, equals the gguf package to the bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf_toys import TYPES, random_blocks, same_bits

from octavo import _native as native
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.kinds import Tensor, dequantize
from octavo.weights.schemes import SCHEMES

KINDS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "TQ1_0", "TQ2_0"), "u4"),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K"), "u5"),
    **{"Q8_0": "i8", "Q6_K": "u6", "IQ4_NL": "nl4", "IQ4_XS": "nl4", "MXFP4": "fp4"},
}
QUANTIZED = list(KINDS)
ROWS, COLUMNS = 24, 768


def wanted(raw: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, TYPES[name])


def test_every_type_is_here():
    assert set(SCHEMES) == set(TYPES)
    for name, scheme in SCHEMES.items():
        assert (scheme.block, scheme.block_bytes) == gguf.GGML_QUANT_SIZES[TYPES[name]]


@pytest.mark.parametrize("name", QUANTIZED)
def test_any_bits_unpack_without_loss(name):
    scheme = SCHEMES[name]
    raw = random_blocks(name, ROWS, COLUMNS, seed=1)
    tensor = scheme.unpack(raw.reshape(-1), (ROWS, COLUMNS))
    want = wanted(raw, name)
    assert np.isfinite(want).mean() > 0.5
    assert same_bits(dequantize(tensor), want)
    planes = {"u5": 3, "u6": 2}.get(tensor.kind, 0) * ROWS * COLUMNS // 8  # a byte each until they are packed
    assert tensor.nbytes - planes == scheme.bytes_as(scheme.kind, (ROWS, COLUMNS))
    assert tensor.kind == scheme.kind == KINDS[name]


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_changed_bit_changes_a_value(name):
    """The comparison above can fail: flip one bit of the last block's quants."""
    raw = random_blocks(name, 1, 256, seed=2)
    raw &= 0x3F  # finite scales
    before = dequantize(SCHEMES[name].unpack(raw.reshape(-1), (1, 256)))
    raw[0, 20] ^= 1
    assert not same_bits(before, dequantize(SCHEMES[name].unpack(raw.reshape(-1), (1, 256))))


def test_stacked_experts_keep_their_shape():
    raw = random_blocks("Q4_K", 3 * 8, 512, seed=3)
    tensor = SCHEMES["Q4_K"].unpack(raw.reshape(-1), (3, 8, 512))
    assert tensor.scale.shape == (3, 8, 16) and tensor.super_scale.shape == (3, 8, 2)
    assert same_bits(dequantize(tensor), wanted(raw, "Q4_K").reshape(3, 8, 512))


@pytest.mark.parametrize("name", [name for name in QUANTIZED if name not in ("Q2_K", "Q3_K", "TQ1_0", "TQ2_0")])
def test_what_is_streamed_is_what_stands_on_disk(name):
    """Types of four bits and more; fewer bits are held as four."""
    scheme = SCHEMES[name]
    assert scheme.kind_bytes <= 1.05 * scheme.block_bytes
    weights = native.Session(0, 16, 16, 1, 4, 5, 16, 1, 0).weights
    weights.reserve("w", name, 64, COLUMNS)
    assert len(weights.data("w")) == scheme.bytes_as(scheme.kind, (64, COLUMNS))


def every_f16() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16)


def test_f16_widens_exactly():
    with np.errstate(all="ignore"):
        want = every_f16().view(np.float16).astype(np.float32)
    assert same_bits(SCHEMES["F16"].read(every_f16().view(np.uint8), (1 << 16,), "f32").data, want)


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even in integers of unbounded width; NaN keeps its upper half, made quiet."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def test_floats_round_to_nearest_even():
    rng = np.random.default_rng(4)
    bits = np.concatenate([rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32), np.uint32([0, 1 << 31, 0x7F7FFFFF])])
    ties = (rng.integers(0, 1 << 16, 4096, dtype=np.uint32) << np.uint32(16)) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    tensor = SCHEMES["F32"].read(values.view(np.uint8), (1, values.size), "bf16")
    assert np.array_equal(tensor.data[0], round_to_bf16(values))
    halves = every_f16().view(np.float16)
    with np.errstate(all="ignore"):
        want = round_to_bf16(halves.astype(np.float32))
    assert np.array_equal(SCHEMES["F16"].read(every_f16().view(np.uint8), (1, 1 << 16), "bf16").data[0], want)


def test_bf16_is_kept_and_widens_exactly():
    raw = every_f16().view(np.uint8)
    tensor = SCHEMES["BF16"].read(raw, (256, 256), "bf16")
    assert np.array_equal(tensor.data.reshape(-1), every_f16())
    assert same_bits(dequantize(tensor).reshape(-1), (every_f16().astype(np.uint32) << 16).view(np.float32))


def test_bytes_that_stand_unaligned_are_read_alike():
    buffer = np.zeros(4 * 8 + 1, np.uint8)
    buffer[1:] = np.arange(8, dtype=np.float32).view(np.uint8)
    tensor = SCHEMES["F32"].read(buffer[1:], (8,), "f32")
    assert tensor.data.flags.aligned and np.array_equal(tensor.data, np.arange(8, dtype=np.float32))


def test_native_refuses_arrays_of_the_wrong_size():
    raw = random_blocks("Q4_1", 2, 64, seed=5)
    tensor = SCHEMES["Q4_1"].unpack(raw.reshape(-1), (2, 64))
    short = Tensor("u4", (2, 128), tensor.data, group=32, scale=tensor.scale, bias=tensor.bias)
    with pytest.raises(ValueError, match="data"):
        dequantize(short)
    with pytest.raises(ValueError, match="whole blocks"):
        SCHEMES["Q4_1"].unpack(raw.reshape(-1)[:-1], (2, 64))


def test_real_model_equals_the_gguf_package(smollm2, smollm2_by_package):
    """Every tensor, its first and last rows; memory against the file."""
    checkpoint, reader = open_checkpoint(smollm2), smollm2_by_package
    assert {tensor.name for tensor in reader.tensors} == set(checkpoint.headers)
    held = 0
    for theirs in reader.tensors:
        ours = checkpoint.read(theirs.name)
        values = dequantize(ours)
        for rows in (slice(0, 16), slice(-16, None)):
            assert same_bits(values[rows], gguf.quants.dequantize(theirs.data[rows], theirs.tensor_type)), theirs.name
        assert ours.nbytes == checkpoint.stored_bytes(theirs.name), theirs.name
        assert ours.kind == checkpoint.kind_of(theirs.name)
        held += ours.nbytes
    assert held <= 1.05 * sum(header.nbytes for header in checkpoint.headers.values())
    checkpoint.close()
