"""FP8 weights (e4m3, no infinities): w[o, i] = w8[o, i] times a scale of the tensor, the row or the block.

Named `weight_scale` ([], [1], [out] or [out, 1]), or `weight_scale_inv` [out / block, in / block] where the
configuration has weight_block_size; both are multiplied. Blocks at the edges may be partial. Scales of activations in
the file are not used: linears eat activations with more bits than they describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.weights.methods.method import (
    FLOATS,
    Joined,
    Parts,
    Rows,
    bad,
    grouped,
    held_as,
    held_bytes,
    joined_header,
    refuse,
    scales,
)

ACTIVATIONS = "activation scales in the checkpoint are not used: activations keep more bits than they describe"


class FP8:
    suffixes: tuple[str, ...] = (".weight_scale_inv", ".weight_scale")
    unused: tuple[str, ...] = (".input_scale", ".activation_scale", ".input_scale_ub")
    notes: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        if config.get("fmt") not in (None, "e4m3", "float8_e4m3fn"):
            refuse("fmt", f"{str(config['fmt'])[:40]!r} is not e4m3")
        self.block = block_of(config.get("weight_block_size"))
        if config.get("activation_scheme") == "static":
            self.notes = (ACTIVATIONS,)

    def joined(self, stem: str, parts: Parts) -> Joined:
        if self.block is None:
            return scaled_rows(parts, ".weight_scale")
        return scaled_blocks(parts, ".weight_scale_inv", self.block)


def block_of(stated: Any) -> tuple[int, int] | None:
    if stated is None:
        return None
    sizes = stated if isinstance(stated, list) and len(stated) == 2 else [0]
    if not all(type(size) is int and 1 <= size <= 1 << 16 for size in sizes):
        refuse("weight_block_size", "is not two sizes", "bad_config")
    return sizes[0], sizes[1]


def scaled_rows(parts: Parts, suffix: str) -> Joined:
    """One scale for all, or one a row."""
    weight = parts.need(".weight", ("F8_E4M3",), 2)
    rows, columns = _checked(weight.name, weight.shape)
    scale = parts.sized(suffix, FLOATS, (), (1,), (rows,), (rows, 1), (1, 1))
    return _joined(parts, (weight.name, scale.name), (rows, columns), (rows, columns), scale.dtype)


def scaled_blocks(parts: Parts, suffix: str, block: tuple[int, int]) -> Joined:
    weight = parts.need(".weight", ("F8_E4M3",), 2)
    rows, columns = _checked(weight.name, weight.shape)
    scale = parts.sized(suffix, FLOATS, (-(-rows // block[0]), -(-columns // block[1])))
    return _joined(parts, (weight.name, scale.name), (rows, columns), block, scale.dtype)


def _checked(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if 0 in shape:
        bad("quant_shape", name, f"has shape {list(shape)}")
    return shape[0], shape[1]


def _joined(parts: Parts, names: tuple[str, str], shape: tuple[int, int], block: tuple[int, int], dtype: str) -> Joined:
    rows, columns = shape
    group = min(block[1], columns)
    each = block == shape

    def open_rows(weight: Any, scale: Any) -> Rows:
        factors = scales(scale, dtype)
        if each:
            factors = np.broadcast_to(factors.reshape(-1, 1), (rows, 1))

        def read(begin: int, end: int) -> Any:
            wanted = factors[begin:end] if each else factors[np.arange(begin, end) // block[0]]
            return grouped("fp8", np.ascontiguousarray(weight[begin:end]), columns, group, wanted)

        return read

    kind = held_as("fp8", columns, group)
    size = held_bytes(kind, shape, group, 2 if dtype == "F16" else 4)
    title = "FP8" if each else f"FP8, blocks of {block[0]} x {block[1]}"
    return Joined(joined_header(parts, shape, title, names), names, kind, size, open_rows)
