"""F16: float16. Matrices are held as bf16, rounded to nearest even; vectors as f32, without loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.empty(shape, np.uint16)
    _native.unpack_blocks("F16", raw, data)
    return Tensor("bf16", shape, data)


def widen(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.empty(shape, np.float32)
    _native.f16_to_f32(raw, data)
    return Tensor("f32", shape, data)


SCHEME = Scheme("F16", 1, 2, "bf16", 2, unpack, widen)
