"""What a format on disk is: the size of its blocks, the logical kind it becomes, and how its bytes are repacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import SUPER_GROUP, Kind, Tensor, dequantize


@dataclass(frozen=True, slots=True)
class Scheme:
    """block: elements of one block; block_bytes: its bytes in the file; kind_bytes: its bytes as kernels stream
    them.

    unpack: bytes of whole rows (uint8, flat) and the shape -> Tensor of `kind`. widen: the same as f32.
    """

    name: str
    block: int
    block_bytes: int
    kind: Kind
    kind_bytes: int
    unpack: Callable[[Any, tuple[int, ...]], Tensor]
    widen: Callable[[Any, tuple[int, ...]], Tensor] | None = None

    def read(self, raw: Any, shape: tuple[int, ...], kind: str) -> Tensor:
        """The tensor as `kind`: this scheme's own kind, f32, or bf16 rounded from that."""
        if kind == self.kind:
            return self.unpack(raw, shape)
        if kind == "bf16":
            return rounded(dequantize(self.unpack(raw, shape)))
        if self.widen is not None:
            return self.widen(raw, shape)
        return Tensor("f32", shape, dequantize(self.unpack(raw, shape)))

    def bytes_as(self, kind: str, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this shape once read as `kind`."""
        elements = prod(shape)
        if kind != self.kind:
            return (2 if kind == "bf16" else 4) * elements
        return elements // self.block * self.kind_bytes


def rounded(values: Any) -> Tensor:
    """float32 as bf16, to nearest even."""
    data = np.empty(values.shape, np.uint16)
    _native.unpack_blocks("F32", values.reshape(-1).view(np.uint8), data)
    return Tensor("bf16", values.shape, data)


def aligned(raw: Any, dtype: Any) -> Any:
    """Bytes of a file as `dtype`: a view where they stand aligned, else a copy."""
    view = raw.view(dtype)
    return view if view.flags.aligned else view.copy()


def grid(shape: tuple[int, ...], per: int, dtype: Any) -> Any:
    """An empty array with one entry per `per` columns of the shape."""
    return np.empty((*shape[:-1], shape[-1] // per), dtype)


def nibbles(shape: tuple[int, ...]) -> Any:
    """Data of a u4 tensor."""
    return grid(shape, 2, np.uint8)


def levels(shape: tuple[int, ...], group: int, dtype: Any) -> tuple[Any, Any]:
    """Multipliers (int8 or uint8) per group, and their float16 factor per super group."""
    return grid(shape, group, dtype), grid(shape, SUPER_GROUP, np.uint16)
