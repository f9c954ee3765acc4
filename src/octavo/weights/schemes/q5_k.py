"""Q5_K: 256 elements in 176 bytes, y = d a v - dmin b; as Q4_K with v of 5 bits. Held as u5."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, levels


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.empty(shape, np.uint8)
    (scale, super_scale), (bias, super_bias) = levels(shape, 32, np.uint8), levels(shape, 32, np.uint8)
    _native.unpack_blocks("Q5_K", raw, data, scale, bias, super_scale, super_bias)
    return Tensor("u5", shape, data, 32, 0, scale, bias, super_scale, super_bias)


SCHEME = Scheme("Q5_K", 256, 176, "u5", 180, unpack)
