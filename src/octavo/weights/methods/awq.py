"""AWQ (arXiv 2306.00978), version gemm: qweight, qzeros, scales.

qweight int32 [in, out / 8]: eight 4-bit integers of one input, whose outputs 8 c + 0, 2, 4, 6, 1, 3, 5, 7 stand
from the lowest nibble up. qzeros int32 [groups, out / 8] alike. w[o, i] = scales[i / group_size, o] (q - z).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.weights.methods.method import (
    FLOATS,
    Joined,
    Parts,
    Rows,
    bad,
    from_words,
    grouped,
    held_as,
    held_bytes,
    joined_header,
    nibbles_of,
    refuse,
    scales,
    split_zero,
    whole,
    zeros_from_words,
)

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the nibble of each of eight outputs


class AWQ:
    suffixes: tuple[str, ...] = (".qweight",)
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        whole(config, ("bits", "w_bit"), (4,), 4)
        self.group = whole(config, ("group_size", "q_group_size"), None, 128)
        version = config.get("version") or "gemm"
        if not isinstance(version, str) or version.lower() != "gemm":
            refuse("version", f"{str(version)[:40]!r} is not gemm")

    def joined(self, stem: str, parts: Parts) -> Joined:
        words = parts.need(".qweight", ("I32",), 2)
        if 0 in words.shape:
            bad("quant_shape", words.name, f"has shape {list(words.shape)}")
        columns, rows = words.shape[0], words.shape[1] * 8
        group = columns if self.group == -1 else self.group
        groups = -(-columns // group)
        scale = parts.sized(".scales", FLOATS, (groups, rows))
        zeros = parts.sized(".qzeros", ("I32",), (groups, rows // 8))
        names, dtype, shape = (words.name, zeros.name, scale.name), scale.dtype, (rows, columns)
        kind = held_as("u4", columns, group)
        if columns % 2:
            bad("quant_shape", words.name, f"has an odd number of columns, {columns}")

        def open_rows(words: Any, zeros: Any, scale: Any) -> Rows:
            return _rows(words, zeros, scales(scale, dtype), group)

        size = held_bytes(kind, shape, group, 4 if dtype == "F16" else 6)
        header = joined_header(parts, shape, f"AWQ 4-bit, groups of {group}", names)
        return Joined(header, names, kind, size, open_rows)


def _rows(words: Any, zeros: Any, scale: Any, group: int) -> Rows:
    columns = len(words)
    offset, zero = split_zero(zeros_from_words(zeros, 4, scale.shape[1], order=PLACES), 8)

    def read(begin: int, end: int) -> Any:
        first, last = begin // 8, -(-end // 8)
        values = from_words(words[:, first:last], 4, 8 * (last - first), order=PLACES)
        data = nibbles_of(values[:, begin - 8 * first : end - 8 * first].T)
        away = None if zero is None else zero[:, begin:end].T
        return grouped("u4", data, columns, group, scale[:, begin:end].T, offset=offset, zero=away)

    return read
