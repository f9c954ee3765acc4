"""BF16: the upper half of float32. Matrices are held as they are; vectors as f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.schemes.scheme import Scheme, aligned


def unpack(raw: Any, shape: tuple[int, ...]) -> Tensor:
    """A view of the file where its alignment allows."""
    return Tensor("bf16", shape, aligned(raw, np.uint16).reshape(shape))


def widen(raw: Any, shape: tuple[int, ...]) -> Tensor:
    data = np.empty(shape, np.float32)
    _native.bf16_to_f32(raw, data)
    return Tensor("f32", shape, data)


SCHEME = Scheme("BF16", 1, 2, "bf16", 2, unpack, widen)
