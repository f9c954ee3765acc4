"""The few logical kinds in which weights live in memory, whatever their format on disk was.

    f32   data float32 [shape]
    bf16  data uint16 [shape], the bits
    i8    data int8 [m, n]              value = scale * (q - offset) + bias, scale and bias per group of columns
    u4    data uint8 [m, n / 2]         element 2j in the low nibble of byte j, 2j + 1 in the high one; same formula

Scale codes of i8 and u4 (G = n / group columns of scales):
    f16        scale uint16 [m, G] holds float16 bits; bias likewise, or None
    two-level  scale int8 or uint8 [m, G] times super_scale (float16 bits) [m, n / 256];
               bias uint8 [m, G] times super_bias (float16 bits) [m, n / 256], or None
Arithmetic of the formula: float32, product rounded, then sum. It equals the format's own rule to the bit.
numpy moves bytes here; it computes no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from octavo import _native

Kind = Literal["f32", "bf16", "i8", "u4"]
SUPER_GROUP = 256


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One weight in memory. Arrays are numpy, C-contiguous, possibly views of a mapped file."""

    kind: Kind
    shape: tuple[int, ...]
    data: Any
    group: int = 0
    offset: int = 0
    scale: Any = None
    bias: Any = None
    super_scale: Any = None
    super_bias: Any = None

    @property
    def two_level(self) -> bool:
        return self.super_scale is not None

    @property
    def nbytes(self) -> int:
        arrays = (self.data, self.scale, self.bias, self.super_scale, self.super_bias)
        return sum(array.nbytes for array in arrays if array is not None)


def dequantize(tensor: Tensor) -> Any:
    """The values as float32 [shape], by the formula above. Always a new array, except for f32."""
    if tensor.kind == "f32":
        return tensor.data
    out = np.empty(tensor.shape, np.float32)
    if tensor.kind == "bf16":
        _native.bf16_to_f32(tensor.data.reshape(-1).view(np.uint8), out)
        return out
    _native.dequantize(
        tensor.kind == "u4",
        tensor.data,
        tensor.scale,
        tensor.bias,
        tensor.super_scale,
        tensor.super_bias,
        tensor.group,
        tensor.offset,
        tensor.scale.dtype == np.int8,
        out,
    )
    return out
