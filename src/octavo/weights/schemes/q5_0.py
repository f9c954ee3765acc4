"""Q5_0: 32 elements in 22 bytes, y = d (v - 16), v of 5 bits. Held as u5."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale = np.empty(shape, np.uint8), grid(shape, 32, np.uint16)
    _native.unpack_blocks("Q5_0", raw, data, scale)
    return Tensor("u5", shape, data, group=32, offset=16, scale=scale)


SCHEME = Scheme("Q5_0", 32, 22, "u5", 22, unpack)
