"""Q3_K: 256 elements in 110 bytes, y = d s (v - 4); v of 3 bits, s of 6 bits per 16. Held as u4."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, levels, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = nibbles(shape)
    scale, super_scale = levels(shape, 16, np.int8)
    _native.unpack_blocks("Q3_K", raw, data, scale, None, super_scale)
    return Tensor("u4", shape, data, group=16, offset=4, scale=scale, super_scale=super_scale)


SCHEME = Scheme("Q3_K", 256, 110, "u4", 146, unpack)
