"""A weight as it stands in its file: whole rows of blocks, and what happens to them on the way into memory.

Nothing is read before read(), or before a backend takes the rows from `raw` itself. read_ahead() has the system fetch
the next weights from the disk while the present one is at work, and lets go of what lies behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from octavo.program.ir import Scalar
from octavo.weights.catalogue import MappedFile, TensorHeader
from octavo.weights.kinds import Tensor
from octavo.weights.prepare import prepare
from octavo.weights.schemes import Scheme

AHEAD = 64 << 20  # bytes that are asked for before they are needed


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """start: its first byte in the file. kind: what it is held as. prep: moves of whole rows (prepare.py)."""

    file: MappedFile
    start: int
    header: TensorHeader
    scheme: Scheme
    kind: str
    prep: tuple[tuple[Scalar, ...], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.shape

    @property
    def raw(self) -> Any:
        """Its bytes in the file, flat uint8; nothing is copied."""
        return self.file.bytes[self.start : self.start + self.header.nbytes]

    @property
    def row_bytes(self) -> int:
        return self.header.nbytes // prod(self.shape[:-1])

    def read(self) -> Tensor:
        """All of it as its kind, rows in their places."""
        return prepare(self.scheme.read(self.raw, self.shape, self.kind), self.prep)

    def order(self) -> Any:
        """Which row of the file stands in each row once prepared, int32; None when all stay where they are."""
        if not self.prep:
            return None
        rows = self.shape[max(len(self.shape) - 2, 0)]  # of one matrix of a stack
        moved = prepare(Tensor("f32", (rows,), np.arange(rows, dtype=np.int32)), self.prep)
        return np.ascontiguousarray(moved.data)

    def fetch(self) -> None:
        """Has the system bring it from the disk."""
        self.file.fetch(self.start, self.start + self.header.nbytes)

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Rows [begin, end) are no longer needed in this process's memory."""
        last = self.header.nbytes if end is None else end * self.row_bytes
        self.file.release(self.start + begin * self.row_bytes, self.start + last)


def read_ahead(weights: Iterable[tuple[str, Tensor | Stored]]) -> Iterator[tuple[str, Tensor | Stored]]:
    """The same weights, in order."""
    listed = list(weights)
    asked, reached, done = 0, 0, 0
    for name, weight in listed:
        while asked < len(listed) and reached - done <= AHEAD:
            coming = listed[asked][1]
            if isinstance(coming, Stored):
                coming.fetch()
                reached += coming.header.nbytes
            asked += 1
        yield name, weight
        if isinstance(weight, Stored):
            weight.release()
            done += weight.header.nbytes
