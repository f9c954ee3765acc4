"""IQ4_NL: 32 elements in 18 bytes, y = d T(v), v of 4 bits, T a table of 16 whole numbers. Held as nl4."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, grid, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data, scale = nibbles(shape), grid(shape, 32, np.uint16)
    _native.unpack_blocks("IQ4_NL", raw, data, scale)
    return Tensor("nl4", shape, data, group=32, scale=scale)


SCHEME = Scheme("IQ4_NL", 32, 18, "nl4", 18, unpack)
