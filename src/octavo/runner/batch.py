"""Rows of a plan -> the step header: one flat int32 array, laid out by program/header.py.

Owns its memory and nothing else; one native call fills it. Work is O(tokens of the step): block tables live in the
session, the header carries differences. It reaches a native session and the sampler as it is; whoever wants an array
asks for `words()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo import _native
from octavo.program.header import offsets
from octavo.request import KVCopy, Row, StateStep, TableUpdate

Header = Any  # _native.StepHeader: words() is a numpy int32 view of it, one_each says that the step is one of decodes


class HeaderWriter:
    """Writes headers into memory that grows when a step needs more; the result is valid until the next write."""

    def __init__(self, max_tokens: int, max_rows: int, max_seqs: int) -> None:
        usual = offsets(max_tokens, max_rows, max_seqs, 0, 0, 16 * max_seqs)
        self._header: Header = _native.StepHeader(max(end for _, end in usual.values()))

    def write(
        self,
        rows: Sequence[Row],
        *,
        copies: Sequence[KVCopy] = (),
        tables: Sequence[TableUpdate] = (),
        states: Sequence[StateStep] = (),
        source_rows: Sequence[int] = (),
    ) -> Header:
        """The header of a step over `rows`. states: one per row, source_rows: one per token; or none at all."""
        self._header.write(rows, copies, tables, states, source_rows)
        return self._header

    def close(self) -> None:
        self._header = None
