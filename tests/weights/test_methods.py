"""Each quantization method of config.json, on random and hand-made words: what is read equals the method's own rule,
packed here by a restatement of it, to the bit; products equal those of the dequantized matrix; bad ones are named."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from quantized import as_torch, awq_words, compressed, stream
from safetensors.torch import save_file

from octavo import _native as native
from octavo.backends.native.executor import _add_weight
from octavo.errors import BadFileError, ConfigError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.kinds import KIND_NUMBERS, dequantize

ROWS, COLUMNS = 64, 192
STEM = "model.layers.0.mlp.up_proj"
NAME = f"{STEM}.weight"


@pytest.fixture
def written(tmp_path):
    """written(quantization_config, {suffix: array}) -> an open checkpoint of one weight."""

    def write(config, parts, **options):
        save_file({STEM + suffix: as_torch(array) for suffix, array in parts.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        return open_checkpoint(tmp_path, **options)

    return write


def values_of(checkpoint, name=NAME):
    """Read in pieces as a backend does, then as one."""
    stored = checkpoint.stored(name)
    rows = int(np.prod(stored.shape[:-1]))
    read = stored.open()
    pieces = [dequantize(read(begin, min(begin + 32, rows))) for begin in range(0, rows, 32)]
    whole = dequantize(stored.read())
    assert np.array_equal(np.concatenate(pieces).reshape(whole.shape), whole)
    assert whole.shape == checkpoint.headers[name].shape
    return whole


def scales(rng, *shape):
    return rng.uniform(0.001, 0.02, shape).astype(np.float16)


def product_agrees(checkpoint, values):
    """The kernels over what a backend holds, against float64."""
    held = checkpoint.stored(NAME).read()
    rows, columns = held.shape
    arrays = [None if array is None else np.ascontiguousarray(array) for array in held.arrays]
    codes = (held.scale_code, held.bias_code)
    packed = native.linear_pack(
        KIND_NUMBERS[held.kind], rows, columns, held.group, held.offset,
        *(0 if array is None else array.ctypes.data for array in arrays), *codes,
    )  # fmt: skip
    x = np.random.default_rng(9).standard_normal((3, columns), dtype=np.float32)
    bits, out = np.zeros((16, -(-columns // 32) * 32), np.uint16), np.empty((3, rows), np.float32)
    bits[:3, :columns] = x.view(np.uint32) >> 16
    native.linear_run(
        0, packed, None, 0, bits.ctypes.data, 3, bits.shape[1], 0, 0, 0, 0, 0, 0, out.ctypes.data, rows, 9, 1
    )
    eaten = (bits[:3, :columns].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    want = eaten @ values.astype(np.float64).T
    tolerance = 2e-6 + (0.004 if held.kind == "bf16" else 0)
    assert np.abs(out - want).max() <= tolerance * np.abs(eaten).sum(1).max() * max(np.abs(values).max(), 1e-9)


# ---- GPTQ
def gptq(bits, group, rng, *, v1=True, one_zero=False, order=None):
    """(parts, values): W[o, i] = scale[g, o] (q[i, o] - z[g, o])."""
    width = COLUMNS if group == -1 else group
    groups = -(-COLUMNS // width)
    g_idx = np.arange(COLUMNS) // width if order is None else (np.arange(COLUMNS) // width)[order]
    q = rng.integers(0, 1 << bits, (COLUMNS, ROWS))
    z = rng.integers(1 if v1 else 0, (1 << bits) + (1 if v1 else 0), (groups, ROWS))
    if one_zero:
        z[:] = 1 << (bits - 1)
    scale = scales(rng, groups, ROWS)
    parts = {
        ".qweight": stream(q.T, bits).T,
        ".qzeros": stream(z - (1 if v1 else 0), bits),
        ".scales": scale,
        ".g_idx": g_idx.astype(np.int32),
    }
    return parts, (scale[g_idx].astype(np.float32) * (q - z[g_idx])).T


@pytest.mark.parametrize("one_zero", [True, False])
@pytest.mark.parametrize("v1", [True, False])
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(written, bits, group, v1, one_zero):
    parts, values = gptq(bits, group, np.random.default_rng(bits), v1=v1, one_zero=one_zero)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False}
    checkpoint = written(config | ({} if v1 else {"checkpoint_format": "gptq_v2"}), parts)
    assert list(checkpoint.headers) == [NAME] and checkpoint.kind_of(NAME) == ("i8" if bits == 8 else "u4")
    assert np.array_equal(values_of(checkpoint), values)
    held = checkpoint.read(NAME)
    assert (held.zero is None) == one_zero and held.nbytes <= checkpoint.stored_bytes(NAME)
    product_agrees(checkpoint, values)


def test_gptq_zero_points_by_hand(written):
    """v1 stores z - 1: 7 is 8, and 15 is 16, which a nibble no longer holds."""
    rng = np.random.default_rng(0)
    parts, _ = gptq(4, 64, rng)
    parts[".qzeros"] = np.full((3, ROWS // 8), 0x7FFFFFFF, np.uint32).view(np.int32)  # 15, and 7 on top
    parts[".qweight"] = np.full((COLUMNS // 8, ROWS), 0x33333333, np.int32)
    parts[".scales"] = np.ones((3, ROWS), np.float16)
    got = values_of(written({"quant_method": "gptq", "bits": 4, "group_size": 64}, parts))
    assert (got[7::8] == 3 - 8).all() and (np.delete(got, slice(7, None, 8), 0) == 3 - 16).all()


def test_gptq_of_three_bits_by_hand(written):
    """Value 10 lies across the first two words, 21 across the next two."""
    parts, _ = gptq(3, -1, np.random.default_rng(0), v1=False, one_zero=True)
    words = np.zeros((COLUMNS * 3 // 32, ROWS), np.uint32)
    words[0], words[1], words[2] = 0b11 << 30, 0b1 | 0b1 << 31, 0b10
    parts[".qweight"], parts[".scales"] = words.view(np.int32), np.ones((1, ROWS), np.float16)
    config = {"quant_method": "gptq", "bits": 3, "group_size": -1, "checkpoint_format": "gptq_v2"}
    got = values_of(written(config, parts)) + 4
    want = np.zeros(COLUMNS)
    want[10], want[21] = 0b111, 0b101
    assert (got == want).all()


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_gptq_in_the_order_of_activations(written, bits):
    """Every column has the scales of its own group: held as bf16, rounded once; exact for who asks for float32."""
    order = np.random.default_rng(1).permutation(COLUMNS)
    parts, values = gptq(bits, 64, np.random.default_rng(2), order=order)
    config = {"quant_method": "gptq", "bits": bits, "group_size": 64, "desc_act": True}
    checkpoint = written(config, parts)
    assert checkpoint.kind_of(NAME) == "bf16" and any("order of their activations" in note for note in checkpoint.notes)
    assert np.array_equal(values_of(checkpoint), torch.from_numpy(values).bfloat16().float().numpy())
    assert np.array_equal(values_of(written(config, parts, matrices="f32")), values)
    in_order, values = gptq(bits, 64, np.random.default_rng(2))
    assert np.array_equal(values_of(written(config, in_order)), values)


# ---- AWQ
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("one_zero", [True, False])
def test_awq(written, group, one_zero):
    rng = np.random.default_rng(3)
    groups = 1 if group == -1 else COLUMNS // group
    q, z, scale = rng.integers(0, 16, (COLUMNS, ROWS)), rng.integers(0, 16, (groups, ROWS)), scales(rng, groups, ROWS)
    if one_zero:
        z[:] = 8
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    checkpoint = written(config, {".qweight": awq_words(q), ".qzeros": awq_words(z), ".scales": scale})
    spread = COLUMNS // groups
    values = (np.repeat(scale.astype(np.float32), spread, 0) * (q - np.repeat(z, spread, 0))).T
    assert np.array_equal(values_of(checkpoint), values)
    product_agrees(checkpoint, values)


def test_awq_nibbles_by_hand(written):
    words = np.full((COLUMNS, ROWS // 8), 0x76543210, np.uint32).view(np.int32)
    parts = {
        ".qweight": words,
        ".qzeros": np.zeros((3, ROWS // 8), np.int32),
        ".scales": np.ones((3, ROWS), np.float16),
    }
    got = values_of(written({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, parts))
    assert (got == np.tile([0, 4, 1, 5, 2, 6, 3, 7], ROWS // 8)[:, None]).all()


# ---- compressed-tensors
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, 0])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_pack_quantized(written, bits, group, symmetric, dtype):
    rng, middle = np.random.default_rng(bits), 1 << (bits - 1)
    groups = COLUMNS // group if group else 1
    q = rng.integers(-middle, middle, (ROWS, COLUMNS))
    z = rng.integers(-middle, middle, (ROWS, groups)) * (not symmetric)
    scale = torch.from_numpy(scales(rng, ROWS, groups).astype(np.float32)).to(dtype)
    parts = {
        ".weight_packed": stream(q + middle, bits),
        ".weight_scale": scale,
        ".weight_shape": np.array([ROWS, COLUMNS], np.int64),
    }
    if not symmetric:
        parts[".weight_zero_point"] = stream((z + middle).T, bits).T
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel"}
    checkpoint = written(compressed(weights | ({"group_size": group} if group else {})), parts)
    spread = COLUMNS // groups
    values = np.repeat(scale.float().numpy(), spread, 1) * (q - np.repeat(z, spread, 1)).astype(np.float32)
    assert list(checkpoint.headers) == [NAME]
    assert np.array_equal(values_of(checkpoint), values)
    product_agrees(checkpoint, values)


def test_pack_quantized_with_columns_out_of_order(written):
    rng = np.random.default_rng(5)
    g_idx = rng.permutation(np.arange(COLUMNS) // 64)
    q, scale = rng.integers(0, 16, (ROWS, COLUMNS)), scales(rng, ROWS, 3)
    parts = {
        ".weight_packed": stream(q, 4), ".weight_scale": scale, ".weight_g_idx": g_idx.astype(np.int32),
        ".weight_shape": np.array([ROWS, COLUMNS]),
    }  # fmt: skip
    config = compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "actorder": "group"})
    values = scale.astype(np.float32)[:, g_idx] * (q - 8)
    assert np.array_equal(values_of(written(config, parts, matrices="f32")), values)


@pytest.mark.parametrize("shape", [(1,), (ROWS, 1)])
@pytest.mark.parametrize("zero", [None, 5])
def test_int_quantized(written, shape, zero):
    """SmoothQuant's: int8, activations per token."""
    rng = np.random.default_rng(6)
    q, scale = rng.integers(-128, 128, (ROWS, COLUMNS)).astype(np.int8), scales(rng, *shape).astype(np.float32)
    parts = {".weight": q, ".weight_scale": scale, ".input_scale": np.ones(1, np.float32)}
    if zero is not None:
        parts[".weight_zero_point"] = np.full(shape, zero, np.int8)
    per_token = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    config = compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized", per_token)
    checkpoint = written(config, parts)
    values = scale * (q.astype(np.float32) - (zero or 0))
    assert np.array_equal(values_of(checkpoint), values) and list(checkpoint.headers) == [NAME]
    product_agrees(checkpoint, values)


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_mxfp4_pack_quantized(written):
    rng = np.random.default_rng(7)
    codes, powers = rng.integers(0, 16, (ROWS, COLUMNS)), rng.integers(90, 140, (ROWS, COLUMNS // 32))
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    config = compressed({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, "mxfp4-pack-quantized")
    checkpoint = written(config, {".weight_packed": packed, ".weight_scale": powers.astype(np.uint8)})
    values = np.ldexp(np.array(E2M1, np.float32)[codes], np.repeat(powers, 32, 1) - 127)
    assert np.array_equal(values_of(checkpoint), values)
    product_agrees(checkpoint, values)


# ---- FP8
def every_e4m3(rng, rows, columns):
    """Any bits but those that are no number."""
    codes = rng.integers(0, 127, (rows, columns)) | rng.integers(0, 2, (rows, columns)) << 7
    codes.reshape(-1)[:254] = np.delete(np.arange(256), [127, 255])
    return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn)


@pytest.mark.parametrize("shape", [(), (1,), (ROWS, 1)])
@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_fp8_of_rows(written, shape, method):
    rng = np.random.default_rng(8)
    weight, scale = every_e4m3(rng, ROWS, COLUMNS), scales(rng, *shape).astype(np.float32)
    config = {"quant_method": "fp8", "activation_scheme": "static"}
    if method == "compressed-tensors":
        config = compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized")
    parts = {".weight": weight, ".weight_scale": np.asarray(scale), ".input_scale": np.ones((), np.float32)}
    values = weight.float().numpy() * scale
    exact = written(config, parts, matrices="f32")
    assert list(exact.headers) == [NAME] and np.array_equal(values_of(exact), values)


@pytest.mark.parametrize(("rows", "columns"), [(64, 192), (160, 160), (130, 40), (128, 256)])
@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_fp8_of_blocks(written, rows, columns, method):
    """128 x 128; partial ones at the edges. Multiplied by weight_scale_inv, whatever its name says."""
    rng = np.random.default_rng(9)
    weight, scale = every_e4m3(rng, rows, columns), scales(rng, -(-rows // 128), -(-columns // 128)).astype(np.float32)
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    if method == "compressed-tensors":
        weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
        config = compressed(weights, "float-quantized")
    name = ".weight_scale_inv" if method == "fp8" else ".weight_scale"
    values = weight.float().numpy() * np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :columns]
    parts = {".weight": weight, name: scale}
    assert np.array_equal(values_of(written(config, parts, matrices="f32")), values)
    product_agrees(written(config, parts), values)


# ---- stacks of experts in MXFP4
def test_mxfp4_experts(tmp_path):
    """Low nibble first: another order than GGUF's."""
    rng, name = np.random.default_rng(10), "model.layers.0.mlp.experts.gate_up_proj"
    codes, powers = rng.integers(0, 16, (3, 40, 96)), rng.integers(100, 140, (3, 40, 3))
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8).reshape(3, 40, 3, 16)
    parts = {f"{name}_blocks": as_torch(blocks), f"{name}_scales": as_torch(powers.astype(np.uint8))}
    bias = {f"{name}_bias": torch.zeros(3, 40)}
    save_file(parts | bias, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.headers) == {name, f"{name}_bias"}
    want = np.ldexp(np.array(E2M1, np.float32)[codes], np.repeat(powers, 32, 2) - 127)
    assert np.array_equal(values_of(checkpoint, name), want)


def test_stacks_and_chosen_rows(tmp_path):
    """Experts in tensors of their own, and every other row of a stack: what the native store packs in pieces equals
    what it packs of the whole."""
    name, tensors, values = "model.layers.0.mlp.experts.{e}.up_proj", {}, []
    for expert in range(3):
        parts, value = gptq(4, 64, np.random.default_rng(expert))
        tensors |= {name.replace("{e}", str(expert)) + suffix: as_torch(part) for suffix, part in parts.items()}
        values.append(value)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}'
    )
    checkpoint = open_checkpoint(tmp_path)
    assert np.array_equal(dequantize(checkpoint.read(f"{name}.weight")), values)
    assert checkpoint.kind_of(f"{name}.weight") == "u4" and checkpoint.stored_bytes(f"{name}.weight") > 3 * ROWS * 96
    packs_alike(checkpoint.stored(f"{name}.weight"))
    stack, rng = "model.layers.0.mlp.experts.gate_up_proj", np.random.default_rng(4)
    blocks, powers = rng.integers(0, 256, (2, 80, 3, 16)), rng.integers(100, 140, (2, 80, 3))
    parts = {f"{stack}_blocks": blocks, f"{stack}_scales": powers}
    tensors = {part: as_torch(array.astype(np.uint8)) for part, array in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')
    held = open_checkpoint(tmp_path, matrices="f32").stored(stack, (("rows", 1, 2, 40),))
    assert held.shape == (2, 40, 96) and held.kind == "fp4"
    packs_alike(held)


def packs_alike(stored):
    """All of it, read at once, against the pieces that a backend takes."""
    sessions = [native.Session(0, 16, 16, 1, 4, 5, 16, 2, 0) for _ in range(2)]
    _add_weight(sessions[0].weights, "w", stored, plain=False)
    _add_weight(sessions[1].weights, "w", stored.read(), plain=False)
    found = [(list(each.weights.shape("w")), each.weights.data("w").tobytes()) for each in sessions]
    assert found[0] == found[1]


# ---- LLM.int8()
def test_llm_int8_as_stored(written):
    rng = np.random.default_rng(11)
    q, largest = rng.integers(-127, 128, (ROWS, COLUMNS)).astype(np.int8), rng.uniform(0.1, 2, ROWS).astype(np.float32)
    parts = {".weight": q, ".SCB": largest, ".weight_format": np.array(0, np.uint8)}
    checkpoint = written({"quant_method": "bitsandbytes", "load_in_8bit": True}, parts)
    values = (largest / np.float32(127))[:, None] * q.astype(np.float32)
    assert list(checkpoint.headers) == [NAME] and np.array_equal(values_of(checkpoint), values)
    product_agrees(checkpoint, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_llm_int8_at_load(tmp_path, dtype):
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight[3] = 0
    tensors = {NAME: weight, "lm_head.weight": weight.clone(), "model.norm.weight": torch.ones(COLUMNS)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"load_in_8bit": true}}')
    checkpoint = open_checkpoint(tmp_path)
    kinds = {name: checkpoint.kind_of(name) for name in tensors}
    assert kinds == {NAME: "i8", "lm_head.weight": "bf16", "model.norm.weight": "f32"}
    largest = weight.float().abs().amax(1, keepdim=True)
    q = (weight.float() * torch.where(largest > 0, torch.full_like(largest, 127) / largest, torch.zeros(1))).round()
    assert np.array_equal(values_of(checkpoint), (q * (largest / 127)).numpy())
    assert q.abs().max() == 127


# ---- what is bad
def good(method):
    rng = np.random.default_rng(0)
    if method == "gptq":
        return {"quant_method": "gptq", "bits": 4, "group_size": 64}, gptq(4, 64, rng)[0]
    if method == "awq":
        words = {".qweight": (COLUMNS, ROWS // 8), ".qzeros": (3, ROWS // 8)}
        parts = {name: np.zeros(shape, np.int32) for name, shape in words.items()}
        return {"quant_method": "awq", "bits": 4, "group_size": 64}, parts | {".scales": scales(rng, 3, ROWS)}
    if method == "packed":
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
        parts = {".weight_packed": np.zeros((ROWS, COLUMNS // 8), np.int32), ".weight_scale": scales(rng, ROWS, 3)}
        return compressed(weights), parts | {".weight_shape": np.array([ROWS, COLUMNS])}
    if method == "int8":
        parts = {".weight": np.zeros((ROWS, COLUMNS), np.int8), ".weight_scale": scales(rng, ROWS, 1)}
        return compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized"), parts
    if method == "blocks":
        parts = {".weight": every_e4m3(rng, ROWS, COLUMNS), ".weight_scale_inv": np.ones((1, 2), np.float32)}
        return {"quant_method": "fp8", "weight_block_size": [128, 128]}, parts
    if method == "mxfp4":
        parts = {"_blocks": np.zeros((2, ROWS, 6, 16), np.uint8), "_scales": np.zeros((2, ROWS, 6), np.uint8)}
        return {"quant_method": "mxfp4"}, parts
    parts = {".weight": np.zeros((ROWS, COLUMNS), np.int8), ".SCB": np.ones(ROWS, np.float32)}
    return {"quant_method": "bitsandbytes", "load_in_8bit": True}, parts


METHODS = ["gptq", "awq", "packed", "int8", "blocks", "mxfp4", "bitsandbytes"]


@pytest.mark.parametrize("method", METHODS)
def test_each_part_is_needed_and_fits(written, method):
    config, parts = good(method)
    written(config, parts).close()
    for name, array in parts.items():
        if name == ".g_idx":
            continue
        rest = {other: value for other, value in parts.items() if other != name}
        if method in ("int8", "blocks") and name != ".weight":
            with pytest.raises(BadFileError):  # int8 or e4m3 that nothing scales
                written(config, rest).read(NAME)
        elif name not in (".weight_packed", ".qweight", "_blocks", ".SCB"):
            with pytest.raises(BadFileError) as caught:
                written(config, rest)
            assert caught.value.code == "quant_missing" and caught.value.exit_code == 65
        wrong = as_torch(array)
        with pytest.raises(BadFileError) as caught:
            written(config, parts | {name: torch.cat((wrong, wrong, wrong[:1]) if wrong.ndim else (wrong[None],) * 2)})
        assert caught.value.code == "quant_shape" and caught.value.line().count("\n") == 0
        with pytest.raises(BadFileError) as caught:
            written(config, parts | {name: wrong.double()})
        assert caught.value.code in ("quant_dtype", "quant_shape") or method == "packed"


BAD_CONFIGS = {
    "unknown method": ({"quant_method": "hqq"}, "quant_method"),
    "no method": ({"bits": 4}, "quant_method"),
    "5 bits": ({"quant_method": "gptq", "bits": 5, "group_size": 64}, "bits"),
    "no bits": ({"quant_method": "gptq", "group_size": 64}, "bits"),
    "group of 0": ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size"),
    "endless group": ({"quant_method": "gptq", "bits": 4, "group_size": 10**12}, "group_size"),
    "group in words": ({"quant_method": "gptq", "bits": 4, "group_size": "128"}, "group_size"),
    "another layout": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format"),
    "sizes by module": ({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {"bits": 8}}}, "dynamic"),
    "gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version"),
    "awq of 8 bits": ({"quant_method": "awq", "bits": 8}, "bits"),
    "no groups": ({"quant_method": "compressed-tensors"}, "config_groups"),
    "groups in a list": ({"quant_method": "compressed-tensors", "config_groups": [1]}, "config_groups"),
    "nvfp4": (compressed({"num_bits": 4, "type": "float"}, "nvfp4-pack-quantized"), "format"),
    "7 bits": (compressed({"num_bits": 7, "type": "int"}), "weights"),
    "group -3": (compressed({"num_bits": 4, "strategy": "group", "group_size": -3}), "group_size"),
    "attn_head": (compressed({"num_bits": 4, "strategy": "attn_head"}), "strategy"),
    "per tensor, dynamic": (
        compressed({"num_bits": 8}, "int-quantized", {"strategy": "tensor", "dynamic": True}),
        "input_activations",
    ),
    "rotated": (compressed({"num_bits": 4}) | {"transform_config": {"a": 1}}, "transform_config"),
    "e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt"),
    "block of one size": ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    "block of 0": ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "load_in_4bit"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_bad_configurations_name_their_field(written, case):
    config, field = BAD_CONFIGS[case]
    with pytest.raises(ConfigError) as caught:
        written(config, {".weight": np.zeros((32, 64), np.float32)})
    assert caught.value.param == f"quantization_config.{field}" and caught.value.exit_code == 78
    assert caught.value.code in ("unsupported", "bad_config") and "config.json" in caught.value.message


def test_mixed_methods_are_named(written):
    config, _ = good("gptq")
    _, parts = good("packed")
    with pytest.raises(BadFileError) as caught:
        written(config, parts)
    assert caught.value.code == "quant_mixed"
    with pytest.raises(BadFileError) as caught:
        written({}, good("gptq")[1])
    assert caught.value.code == "quant_mixed"


def test_groups_that_are_not_there(written):
    config, parts = good("gptq")
    for wrong in (-1, 3):
        parts[".g_idx"] = np.full(COLUMNS, wrong, np.int32)
        with pytest.raises(BadFileError) as caught:
            written(config, parts)
        assert caught.value.code == "quant_groups"
