"""Packers of quantized checkpoints, restated from the methods' own rules, and tiny models written with them."""

from __future__ import annotations

import json

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_model import CONFIG, random_tensors, write_tokenizer


def stream(values, bits):
    """The last axis as a stream of bits, lowest first, in int32 words."""
    shape = values.shape
    flat = values.reshape(-1, shape[-1]).astype(np.uint64)
    words = -(-shape[-1] * bits // 32)
    out = np.zeros((len(flat), words), np.uint64)
    for i in range(shape[-1]):
        word, shift = divmod(i * bits, 32)
        out[:, word] |= flat[:, i] << np.uint64(shift) & np.uint64(0xFFFFFFFF)
        if shift + bits > 32:
            out[:, word + 1] |= flat[:, i] >> np.uint64(32 - shift)
    return out.astype(np.uint32).view(np.int32).reshape(*shape[:-1], words)


def awq_words(values):
    """Bits 4 k of word c hold column 8 c + [0, 2, 4, 6, 1, 3, 5, 7][k]."""
    eights = values.reshape(len(values), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
    return stream(eights.reshape(values.shape), 4)


def compressed(weights, style="pack-quantized", activations=None):
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}
    return {"quant_method": "compressed-tensors", "format": style, "config_groups": groups}


def _four_bits(weight):
    """(q, zero, scale) of rows: weight ~ scale (q - zero)."""
    low, high = np.minimum(weight.min(1), 0), np.maximum(weight.max(1), 0)
    scale = ((high - low) / 15).astype(np.float16)
    zero = np.rint(-low / scale).astype(int)
    return np.clip(np.rint(weight / scale[:, None]) + zero[:, None], 0, 15).astype(int), zero, scale


def _gptq(weight):
    q, zero, scale = _four_bits(weight)
    zero = np.maximum(zero, 1)
    parts = {".qweight": stream(q, 4).T, ".qzeros": stream(zero[None] - 1, 4), ".scales": scale[None]}
    return parts, scale.astype(np.float32)[:, None] * (q - zero[:, None]).astype(np.float32)


def _awq(weight):
    q, zero, scale = _four_bits(weight)
    parts = {".qweight": awq_words(q.T), ".qzeros": awq_words(zero[None]), ".scales": scale[None]}
    return parts, scale.astype(np.float32)[:, None] * (q - zero[:, None]).astype(np.float32)


def _int8(weight):
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    q = np.rint(weight / scale).astype(np.int8)
    return {".weight": q, ".weight_scale": scale}, scale * q


def _fp8(weight):
    scale = np.full((-(-len(weight) // 32), -(-weight.shape[1] // 32)), np.abs(weight).max() / 448, np.float32)
    q = torch.from_numpy(weight / scale[0, 0]).to(torch.float8_e4m3fn)
    return {".weight": q, ".weight_scale_inv": scale}, scale[0, 0] * q.float().numpy()


METHODS = {
    "gptq": (_gptq, {"quant_method": "gptq", "bits": 4, "group_size": -1}),
    "awq": (_awq, {"quant_method": "awq", "bits": 4, "group_size": -1}),
    "int8": (_int8, compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized")),
    "fp8": (_fp8, {"quant_method": "fp8", "weight_block_size": [32, 32]}),
}


def write_quantized(folder, plain, method):
    """A tiny Llama in `folder` with its projections quantized; the same one, dequantized, in `plain`."""
    pack, config = METHODS[method]
    packed, values = {}, {}
    for name, array in random_tensors(CONFIG, 5).items():
        if "_proj" not in name:
            packed[name] = values[name] = array
            continue
        parts, values[name] = pack(array)
        packed |= {name.removesuffix(".weight") + suffix: part for suffix, part in parts.items()}
    for path, tensors, stated in ((folder, packed, {"quantization_config": config}), (plain, values, {})):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(CONFIG | stated))
        write_tokenizer(path)
        save_file({name: as_torch(array) for name, array in tensors.items()}, path / "model.safetensors")


def as_torch(array):
    return (array if isinstance(array, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(array))).contiguous()
