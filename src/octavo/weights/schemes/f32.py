"""F32: float32. Vectors stay so; matrices are held as bf16, rounded to nearest even, unless float32 is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, aligned


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.empty(shape, np.uint16)
    _native.unpack_blocks("F32", raw, data)
    return Tensor("bf16", shape, data)


def widen(raw: Any, shape: tuple[int, ...]) -> Tensor:
    """The numbers themselves: a view of the file where its alignment allows."""
    return Tensor("f32", shape, aligned(raw, np.float32).reshape(shape))


SCHEME = Scheme("F32", 1, 4, "bf16", 2, unpack, widen)
