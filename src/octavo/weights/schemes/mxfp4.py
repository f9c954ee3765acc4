"""MXFP4: 32 elements in 17 bytes, y = 2^(e - 128) T(v), v of 4 bits, T twice the e2m1 numbers. Held as fp4."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale = nibbles(shape), grid(shape, 32, np.uint8)
    _native.unpack_blocks("MXFP4", raw, data, scale)
    return Tensor("fp4", shape, data, group=32, scale=scale)


SCHEME = Scheme("MXFP4", 32, 17, "fp4", 17, unpack)
