"""TQ1_0: 256 elements in 54 bytes, y = d (v - 1), v of 0, 1, 2, five to a byte. Held as u4."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale = nibbles(shape), grid(shape, 256, np.uint16)
    _native.unpack_blocks("TQ1_0", raw, data, scale)
    return Tensor("u4", shape, data, group=256, offset=1, scale=scale)


SCHEME = Scheme("TQ1_0", 256, 54, "u4", 130, unpack)
