"""Q4_K: 256 elements in 144 bytes, y = d a v - dmin b; a, b of 6 bits per 32. Two-level scales, super_bias = -dmin."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, levels, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = nibbles(shape)
    (scale, super_scale), (bias, super_bias) = levels(shape, 32, np.uint8), levels(shape, 32, np.uint8)
    _native.unpack_blocks("Q4_K", raw, data, scale, bias, super_scale, super_bias)
    return Tensor("u4", shape, data, 32, 0, scale, bias, super_scale, super_bias)


SCHEME = Scheme("Q4_K", 256, 144, "u4", 148, unpack)
