"""Q4_1: 32 elements in 20 bytes, y = d v + m, v of 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale, bias = nibbles(shape), grid(shape, 32, np.uint16), grid(shape, 32, np.uint16)
    _native.unpack_blocks("Q4_1", raw, data, scale, bias)
    return Tensor("u4", shape, data, group=32, scale=scale, bias=bias)


SCHEME = Scheme("Q4_1", 32, 20, "u4", 20, unpack)
