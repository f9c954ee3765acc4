"""Q2_K: 256 elements in 84 bytes, y = d a v - dmin b; v of 2 bits, a, b of 4 bits per 16. Held as u4."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, levels, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = nibbles(shape)
    (scale, super_scale), (bias, super_bias) = levels(shape, 16, np.uint8), levels(shape, 16, np.uint8)
    _native.unpack_blocks("Q2_K", raw, data, scale, bias, super_scale, super_bias)
    return Tensor("u4", shape, data, 16, 0, scale, bias, super_scale, super_bias)


SCHEME = Scheme("Q2_K", 256, 84, "u4", 164, unpack)
