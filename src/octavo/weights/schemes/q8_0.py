"""Q8_0: 32 elements in 34 bytes, y = d q, q of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale = np.empty(shape, np.int8), grid(shape, 32, np.uint16)
    _native.unpack_blocks("Q8_0", raw, data, scale)
    return Tensor("i8", shape, data, group=32, scale=scale)


SCHEME = Scheme("Q8_0", 32, 34, "i8", 34, unpack)
