"""Rows of a plan -> the step header: one flat int32 array, laid out by program/header.py.

Owns the arrays and nothing else. Work is O(tokens of the step): block tables live in the session, the header carries
differences. T tokens, R logit rows, N requests, C copies, U words of table updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from octavo.program.header import FLAG_NO_WRITE, VERSION, offsets
from octavo.request import KVCopy, Row, TableUpdate

Array = np.ndarray[Any, np.dtype[np.int32]]


class HeaderWriter:
    """Writes headers into one array that grows when a step needs more; the result is valid until the next write."""

    def __init__(self, max_tokens: int, max_rows: int, max_seqs: int) -> None:
        usual = offsets(max_tokens, max_rows, max_seqs, 0, 16 * max_seqs)
        self._buffer: Array = np.zeros(max(end for _, end in usual.values()), np.int32)

    def write(
        self,
        rows: Sequence[Row],
        *,
        copies: Sequence[KVCopy] = (),
        tables: Sequence[TableUpdate] = (),
        source_rows: Sequence[int] = (),
    ) -> Array:
        """The header [words] of a step over `rows`. source_rows: one per token, or none at all."""
        lengths = np.array([len(row.token_ids) for row in rows], np.int32)
        wanted = np.array([row.num_logits for row in rows], np.int32)
        T, R, N = int(lengths.sum()), int(wanted.sum()), len(rows)
        words = [word for update in tables for word in _words(update)]
        where = offsets(T, R, N, len(copies), len(words))
        header = self._room(max(end for _, end in where.values()))
        header[:6] = (VERSION, T, R, N, len(copies), len(words))
        field = {name: header[begin:end] for name, (begin, end) in where.items()}

        begin = field["row_begin"]
        begin[0] = 0
        np.cumsum(lengths, out=begin[1:])
        field["slot"][:] = [row.slot for row in rows]
        field["context"][:] = [row.start for row in rows]
        field["token"][:] = np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int32, T)
        field["request"][:] = np.repeat(np.arange(N, dtype=np.int32), lengths)
        step_row = np.arange(T, dtype=np.int32)
        np.add(step_row, np.repeat(field["context"] - begin[:-1], lengths), out=field["index"])
        field["position"][:] = field["index"]
        field["adapter"][:] = 0
        field["flags"][:] = 0
        field["parent"][:] = -1
        field["source_row"][:] = source_rows if len(source_rows) else 0
        _fill_logit_rows(field["logit_row"], begin[1:] - wanted, wanted)
        for n, row in enumerate(rows):
            if row.no_write:
                field["flags"][begin[n]] = FLAG_NO_WRITE
            if row.parents:
                _fill_tree(field, row, int(begin[n]))
        field["copies"][:] = [word for copy in copies for word in (copy.slot, copy.source, copy.target)]
        field["tables"][:] = words
        return header

    def _room(self, size: int) -> Array:
        if size > len(self._buffer):
            self._buffer = np.zeros(2 * size, np.int32)
        return self._buffer[:size]


def _words(update: TableUpdate) -> tuple[int, ...]:
    return (update.slot, update.group, update.first, len(update.blocks), *update.blocks)


def _fill_logit_rows(out: Array, first: Array, counts: Array) -> None:
    """out: first[n], first[n] + 1, ... counts[n] of them, for each request in turn."""
    done = np.cumsum(counts, dtype=np.int32) - counts
    np.add(np.arange(len(out), dtype=np.int32), np.repeat(first - done, counts), out=out)


def _fill_tree(field: dict[str, Array], row: Row, begin: int) -> None:
    """Each draft of a tree: its parent's step row, and the position after its parent's."""
    first = len(row.token_ids) - row.num_drafts
    for draft, parent in enumerate(row.parents):
        at = begin + first + draft
        field["parent"][at] = begin + parent
        field["position"][at] = field["position"][begin + parent] + 1
