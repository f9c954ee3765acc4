"""Rows of a plan -> the step header: one flat int32 array, laid out by program/header.py.

Owns the array and nothing else; one native call fills it. Work is O(tokens of the step): block tables live in the
session, the header carries differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo import _native
from octavo.program.header import offsets
from octavo.request import KVCopy, Row, StateStep, TableUpdate

Array = np.ndarray[Any, np.dtype[np.int32]]


class HeaderWriter:
    """Writes headers into one array that grows when a step needs more; the result is valid until the next write."""

    def __init__(self, max_tokens: int, max_rows: int, max_seqs: int) -> None:
        usual = offsets(max_tokens, max_rows, max_seqs, 0, 0, 16 * max_seqs)
        self._buffer: Array = np.zeros(max(end for _, end in usual.values()), np.int32)

    def write(
        self,
        rows: Sequence[Row],
        *,
        copies: Sequence[KVCopy] = (),
        tables: Sequence[TableUpdate] = (),
        states: Sequence[StateStep] = (),
        source_rows: Sequence[int] = (),
    ) -> Array:
        """The header [words] of a step over `rows`. states: one per row, source_rows: one per token; or none at all."""
        words: int = _native.write_header(self._buffer, rows, copies, tables, states, source_rows)
        if words > len(self._buffer):
            self._buffer = np.zeros(2 * words, np.int32)
            _native.write_header(self._buffer, rows, copies, tables, states, source_rows)
        return self._buffer[:words]
