"""GPTQ (arXiv 2210.17323), as AutoGPTQ and GPTQModel write it: qweight, qzeros, scales, g_idx.

qweight int32 [in b / 32, out]: a stream of b-bit integers q down each column, lowest bits first. qzeros int32
[groups, out b / 32]: likewise along rows; checkpoint_format "gptq" (and silence) stores z - 1, "gptq_v2" z.
w[o, i] = scales[g, o] (q - z[g, o]), g = g_idx[i]: i / group_size unless columns were quantized in the order of their
activations (desc_act): then every column has its own scale, and the weight is held as bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.weights.kinds import Kind
from octavo.weights.methods.method import (
    FLOATS,
    ORDERED,
    Joined,
    Parts,
    Rows,
    bad,
    by_columns,
    grouped,
    groups_of,
    held_as,
    held_bytes,
    integers,
    joined_header,
    refuse,
    scales,
    split_zero,
    whole,
    zeros_from_words,
)


class GPTQ:
    suffixes: tuple[str, ...] = (".qweight",)
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.bits = whole(config, ("bits",), (2, 3, 4, 8), 0)
        self.group = whole(config, ("group_size",), None, -1)
        written = config.get("checkpoint_format") or "gptq"
        if written not in ("gptq", "gptq_v2"):
            refuse("checkpoint_format", f"{str(written)[:40]!r} is not gptq or gptq_v2")
        if config.get("dynamic"):
            refuse("dynamic", "other sizes for some modules are not supported")
        self.plus = 1 if written == "gptq" else 0

    def joined(self, stem: str, parts: Parts) -> Joined:
        bits = self.bits
        words = parts.need(".qweight", ("I32",), 2)
        if words.shape[0] * 32 % bits or words.shape[1] * bits % 32 or 0 in words.shape:
            bad("quant_shape", words.name, f"has shape {list(words.shape)}, which holds no {bits}-bit matrix")
        columns, rows = words.shape[0] * 32 // bits, words.shape[1]
        group = columns if self.group == -1 else self.group
        groups = -(-columns // group)
        scale = parts.sized(".scales", FLOATS, (groups, rows))
        zeros = parts.sized(".qzeros", ("I32",), (groups, rows * bits // 32))
        names: tuple[str, ...] = (words.name, zeros.name, scale.name)
        kind: Kind = held_as("i8" if bits == 8 else "u4", columns, group)
        index = None
        if parts.has(".g_idx"):
            header = parts.sized(".g_idx", ("I32",), (columns,))
            index = groups_of(parts.load(header.name), columns, groups, header.name)
            names = (*names, header.name)
            if np.array_equal(index, np.arange(columns) // group):
                index = None
        note = ""
        if index is not None:
            kind, note = "bf16", ORDERED

        def open_rows(words: Any, zeros: Any, scale: Any, _index: Any = None) -> Rows:
            return self._rows(words, zeros, scales(scale, dtype), group, index)

        dtype, shape = scale.dtype, (rows, columns)
        title = f"GPTQ {bits}-bit, groups of {group}" + (" out of order" if index is not None else "")
        size = held_bytes(kind, shape, group, 4 if dtype == "F16" else 6)
        return Joined(joined_header(parts, shape, title, names), names, kind, size, open_rows, note)

    def _rows(self, words: Any, zeros: Any, scale: Any, group: int, index: Any) -> Rows:
        bits, count = self.bits, words.shape[1]
        plus = self.plus - (128 if bits == 8 else 0)
        offset, zero = split_zero(zeros_from_words(zeros, bits, count, plus=plus), 0 if bits == 8 else 1 << (bits - 1))

        def read(begin: int, end: int) -> Any:
            columns = words.shape[0] * 32 // bits
            kind, data = integers(words[:, begin:end].T, bits, columns)
            factor, away = scale[:, begin:end].T, None if zero is None else zero[:, begin:end].T
            if index is not None:
                return by_columns(kind, data, index, factor, offset=offset, zero=away)
            return grouped(kind, data, columns, group, factor, offset=offset, zero=away)

        return read
