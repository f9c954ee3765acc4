"""Q4_0: 32 elements in 18 bytes, y = d (v - 8), v of 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale = nibbles(shape), grid(shape, 32, np.uint16)
    _native.unpack_blocks("Q4_0", raw, data, scale)
    return Tensor("u4", shape, data, group=32, offset=8, scale=scale)


SCHEME = Scheme("Q4_0", 32, 18, "u4", 18, unpack)
