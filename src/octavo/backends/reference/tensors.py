"""Logical weights as float32 torch tensors, by the formula of weights/kinds.py: the twin of native unpacking."""

from __future__ import annotations

import numpy as np
import torch

from octavo.weights.kinds import SUPER_GROUP, Tensor

TABLES = {
    "nl4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "fp4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}


def to_float(tensor: Tensor) -> torch.Tensor:
    """float32 [shape]. Exact for every kind: product rounded to float32, then the sum."""
    if tensor.kind == "f32":
        return _own(tensor.data).reshape(tensor.shape)
    if tensor.kind == "bf16":
        return _own(tensor.data.view(np.int16)).view(torch.bfloat16).float().reshape(tensor.shape)
    codes = _own(tensor.data)
    if tensor.kind == "fp8":
        grouped = codes.view(torch.float8_e4m3fn).float().reshape(*tensor.shape[:-1], -1, tensor.group)
        return (grouped * _per_group(tensor.scale, None, tensor.group)[..., None]).reshape(tensor.shape)
    if tensor.kind in ("u4", *TABLES):
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    if tensor.kind in TABLES:
        codes = torch.tensor(TABLES[tensor.kind])[codes.long()]
    codes = (codes.to(torch.int32) - tensor.offset).reshape(*tensor.shape[:-1], -1, tensor.group)
    if tensor.zero is not None:
        codes = codes - _own(tensor.zero).to(torch.int32)[..., None]
    values = codes.float() * _per_group(tensor.scale, tensor.super_scale, tensor.group)[..., None]
    if tensor.bias is not None:
        values = values + _per_group(tensor.bias, tensor.super_bias, tensor.group)[..., None]
    return values.reshape(tensor.shape)


def _per_group(inner: np.ndarray, outer: np.ndarray | None, group: int) -> torch.Tensor:
    """float32 [m, G]: float16 bits, powers of two, or integers times the float16 of their 256 columns."""
    if outer is None and inner.dtype == np.float32:
        return _own(inner)
    if outer is None and inner.dtype == np.uint8:
        return torch.ldexp(torch.ones(inner.shape), _own(inner).to(torch.int32) - 128)
    if outer is None:
        return _half(inner)
    return _own(inner).float() * _half(outer).repeat_interleave(SUPER_GROUP // group, dim=-1)


def _half(bits: np.ndarray) -> torch.Tensor:
    return _own(bits.view(np.int16)).view(torch.float16).float()


def _own(array: np.ndarray) -> torch.Tensor:
    """A copy: the array may be a read-only view of a file."""
    return torch.from_numpy(array.copy())
