"""MXFP4 (OCP MX) experts: NAME_blocks uint8 [experts, out, in / 32, 16], NAME_scales uint8 [experts, out, in / 32].

Byte k of a block holds element 2 k in its low nibble, 2 k + 1 in the high one: e2m1. w = e2m1 2^(scale - 127). The
weight is NAME, [experts, out, in].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from octavo.weights.kinds import Tensor
from octavo.weights.methods.method import Joined, Parts, Rows, bad, held_bytes, joined_header

BLOCK = 32


class MXFP4:
    suffixes: tuple[str, ...] = ("_blocks",)
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        """The configuration adds nothing."""

    def joined(self, stem: str, parts: Parts) -> Joined:
        blocks = parts.need("_blocks", ("U8",), 4)
        if 0 in blocks.shape or blocks.shape[3] != BLOCK // 2:
            bad("quant_shape", blocks.name, f"has shape {list(blocks.shape)}, not blocks of 16 bytes")
        scale = parts.sized("_scales", ("U8",), blocks.shape[:3])
        shape = (*blocks.shape[:2], BLOCK * blocks.shape[2])
        names = (blocks.name, scale.name)
        header = replace(joined_header(parts, shape, "MXFP4", names), name=stem)
        return Joined(header, names, "fp4", held_bytes("fp4", shape, BLOCK, 1), open_rows)


def open_rows(blocks: Any, scale: Any) -> Rows:
    """Blocks and scales of rows: [..., groups, 16] or [..., columns / 2], and [..., groups]."""
    groups = scale.shape[-1]
    data, powers = blocks.reshape(-1, groups * BLOCK // 2), scale.reshape(-1, groups)

    def read(begin: int, end: int) -> Tensor:
        held = np.ascontiguousarray(data[begin:end]), np.ascontiguousarray(powers[begin:end])
        return Tensor("fp4", (end - begin, groups * BLOCK), held[0], BLOCK, scale=held[1])

    return read
