"""Q5_1: 32 elements in 24 bytes, y = d v + m, v of 5 bits. Held as u5."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale, bias = np.empty(shape, np.uint8), grid(shape, 32, np.uint16), grid(shape, 32, np.uint16)
    _native.unpack_blocks("Q5_1", raw, data, scale, bias)
    return Tensor("u5", shape, data, group=32, scale=scale, bias=bias)


SCHEME = Scheme("Q5_1", 32, 24, "u5", 24, unpack)
