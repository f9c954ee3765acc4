"""Q6_K: 256 elements in 210 bytes, y = d s (v - 32); s of 8 bits per 16. Held as u6, two-level scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, levels


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.empty(shape, np.uint8)
    scale, super_scale = levels(shape, 16, np.int8)
    _native.unpack_blocks("Q6_K", raw, data, scale, None, super_scale)
    return Tensor("u6", shape, data, group=16, offset=32, scale=scale, super_scale=super_scale)


SCHEME = Scheme("Q6_K", 256, 210, "u6", 210, unpack)
