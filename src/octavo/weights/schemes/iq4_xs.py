"""IQ4_XS: 256 elements in 136 bytes, y = d s T(v), T as in IQ4_NL; s of 6 bits per 32. Held as nl4."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, levels, nibbles


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = nibbles(shape)
    scale, super_scale = levels(shape, 32, np.int8)
    _native.unpack_blocks("IQ4_XS", raw, data, scale, None, super_scale)
    return Tensor("nl4", shape, data, group=32, scale=scale, super_scale=super_scale)


SCHEME = Scheme("IQ4_XS", 256, 136, "nl4", 138, unpack)
