"""A weight as it stands in its file: whole rows of blocks, and what happens to them on the way into memory.

Nothing is read before read(), or before a backend takes the rows from `raw` itself. read_ahead() has the system fetch
the next weights from the disk while the present one is at work, and lets go of what lies behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from octavo.program.ir import Scalar
from octavo.weights.catalogue import MappedFile, TensorHeader
from octavo.weights.kinds import Tensor
from octavo.weights.prepare import by_rows, prepare, prepared_shape
from octavo.weights.schemes import Scheme

AHEAD = 64 << 20  # bytes that are asked for before they are needed


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """start: its first byte in the file. kind: what it is held as. prep: what is done to its rows (prepare.py)."""

    file: MappedFile
    start: int
    header: TensorHeader
    scheme: Scheme
    kind: str
    prep: tuple[tuple[Scalar, ...], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Once prepared; the header has the file's."""
        return prepared_shape(self.header.shape, self.prep)

    @property
    def file_bytes(self) -> int:
        return self.header.nbytes

    @property
    def whole_rows(self) -> bool:
        """Whether its rows are rows of the file, so that `order` says which."""
        return by_rows(self.prep)

    @property
    def raw(self) -> Any:
        """Its bytes in the file, flat uint8; nothing is copied."""
        return self.file.bytes[self.start : self.start + self.header.nbytes]

    @property
    def row_bytes(self) -> int:
        return self.header.nbytes // prod(self.header.shape[:-1])

    def read(self) -> Tensor:
        """All of it as its kind, rows in their places."""
        return prepare(self.scheme.read(self.raw, self.header.shape, self.kind), self.prep)

    def order(self) -> Any:
        """Which row of the file stands in each row once prepared, int32; None when all stay where they are."""
        if not self.prep:
            return None
        shape = self.header.shape
        rows = shape[max(len(shape) - 2, 0)]  # of one matrix of a stack
        moved = prepare(Tensor("f32", (rows,), np.arange(rows, dtype=np.int32)), self.prep)
        return np.ascontiguousarray(moved.data)

    def fetch(self) -> None:
        """Has the system bring it from the disk."""
        self.file.fetch(self.start, self.start + self.header.nbytes)

    def release(self, begin: int = 0, end: int | None = None) -> None:
        """Rows [begin, end) are no longer needed in this process's memory."""
        last = self.header.nbytes if end is None else end * self.row_bytes
        self.file.release(self.start + begin * self.row_bytes, self.start + last)


class OnDisk(Protocol):
    """What read_ahead() and a backend may do with a weight that stands in files, whatever it is made of there."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def file_bytes(self) -> int: ...
    def read(self) -> Tensor: ...
    def fetch(self) -> None: ...
    def release(self) -> None: ...


def read_ahead(weights: Iterable[tuple[str, Tensor | OnDisk]]) -> Iterator[tuple[str, Tensor | OnDisk]]:
    """The same weights, in order."""
    listed = list(weights)
    asked, reached, done = 0, 0, 0
    for name, weight in listed:
        while asked < len(listed) and reached - done <= AHEAD:
            coming = listed[asked][1]
            if not isinstance(coming, Tensor):
                coming.fetch()
                reached += coming.file_bytes
            asked += 1
        yield name, weight
        if not isinstance(weight, Tensor):
            weight.release()
            done += weight.file_bytes
