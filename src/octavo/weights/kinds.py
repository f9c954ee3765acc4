"""The few logical kinds in which weights live in memory, whatever their format on disk was.

    f32   data float32 [shape]
    bf16  data uint16 [shape], the bits
    i8    data int8 [m, n]              value = scale * (q - offset - zero) + bias, each per group of columns
    u4    data uint8 [m, n / 2]         element 2j in the low nibble of byte j, 2j + 1 in the high one; same formula
    u5, u6  data uint8 [m, n] of 5 or 6 bits; same formula. Kernels stream nibbles and a plane of the bits above them
    nl4, fp4  the same nibbles, q a whole number of a table: IQ4_NL's, or twice e2m1 (native/codes.h)
    fp8   data uint8 [m, n]             e4m3 bits; value = scale * e4m3

Scale codes of all but the first two (G = n / group columns of scales):
    f16        scale uint16 [m, G] holds float16 bits; bias likewise, or None
    f32        scale float32 [m, G]; no bias
    e8m0       scale uint8 [m, G]: 2^(scale - 128); no bias
    two-level  scale int8 or uint8 [m, G] times super_scale (float16 bits) [m, n / 256];
               bias uint8 [m, G] times super_bias (float16 bits) [m, n / 256], or None
zero: int16 [m, G], or None; in place of a bias. Arithmetic of the formula: q - offset - zero in whole numbers, then
float32, product rounded, then sum. It equals the format's own rule to the bit.
A stack of matrices has one more axis in front, in every array. numpy moves bytes here; it computes no value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from octavo import _native

Kind = Literal["f32", "bf16", "i8", "u4", "nl4", "fp4", "fp8", "u5", "u6"]
# native/linear.h, WeightKind
KIND_NUMBERS = {"f32": 0, "bf16": 1, "i8": 2, "u4": 3, "nl4": 4, "fp4": 5, "fp8": 6, "u5": 7, "u6": 8}
SUPER_GROUP = 256
F16_SCALE, U8_SCALE, I8_SCALE, F32_SCALE, E8M0_SCALE = range(5)  # ScaleCode there
NO_BIAS, VALUE_BIAS, ZERO_BIAS = range(3)  # BiasCode


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
    zero: Any = None

    @property
    def scale_code(self) -> int:
        if self.super_scale is not None:
            return I8_SCALE if self.scale.dtype == np.int8 else U8_SCALE
        if self.scale is None or self.scale.dtype == np.uint16:
            return F16_SCALE
        return F32_SCALE if self.scale.dtype == np.float32 else E8M0_SCALE

    @property
    def bias_code(self) -> int:
        return VALUE_BIAS if self.bias is not None else ZERO_BIAS if self.zero is not None else NO_BIAS

    @property
    def arrays(self) -> tuple[Any, ...]:
        """data, scale, bias or zero, super_scale, super_bias: None where it has no such part."""
        bias = self.bias if self.zero is None else self.zero
        return (self.data, self.scale, bias, self.super_scale, self.super_bias)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays if array is not None)

    def one(self, number: int) -> Tensor:
        """One matrix of a stack."""
        return replace(self.moved(lambda array: array[number]), shape=self.shape[1:])

    def reshaped(self, shape: tuple[int, ...]) -> Tensor:
        """The same rows under other leading axes."""
        return replace(self.moved(lambda array: array.reshape(*shape[:-1], array.shape[-1])), shape=shape)

    def moved(self, move: Callable[[Any], Any]) -> Tensor:
        """With `move` applied to every array, whose rows stand alike."""
        names = ("data", "scale", "bias", "super_scale", "super_bias", "zero")
        held = {name: getattr(self, name) for name in names}
        return replace(self, **{name: move(array) for name, array in held.items() if array is not None})


def dequantize(tensor: Tensor) -> Any:
    """The values as float32 [shape], by the formula above. Always a new array, except for f32."""
    if tensor.kind == "f32":
        return tensor.data
    out = np.empty(tensor.shape, np.float32)
    if tensor.kind == "bf16":
        _native.bf16_to_f32(tensor.data.reshape(-1).view(np.uint8), out)
        return out
    codes = (tensor.scale_code, tensor.bias_code, tensor.group, tensor.offset)
    _native.dequantize(KIND_NUMBERS[tensor.kind], *tensor.arrays, *codes, out)
    return out
