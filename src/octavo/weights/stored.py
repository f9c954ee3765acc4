"""A weight as it stands in its file, and what happens to it on the way into memory: whole rows of blocks of one tensor
(Stored), or several tensors that make one weight (Assembled).

Nothing is read before read(), or before a backend takes the rows from `raw` itself. read_ahead() has the system fetch
the next weights from the disk while the present one is at work, and lets go of what lies behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np

from octavo.program.ir import Scalar
from octavo.weights.catalogue import MappedFile, TensorHeader
from octavo.weights.kinds import Tensor, dequantize
from octavo.weights.methods import Joined
from octavo.weights.methods.method import Rows
from octavo.weights.prepare import by_rows, prepare, prepared_shape
from octavo.weights.schemes import Scheme
from octavo.weights.schemes.scheme import aligned, rounded

AHEAD = 64 << 20  # bytes that are asked for before they are needed
BITS = {
    **dict.fromkeys(("U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), np.uint8),
    **{"I8": np.int8, "F16": np.uint16, "BF16": np.uint16, "I16": np.int16, "U16": np.uint16},
    **{"I32": np.int32, "U32": np.uint32, "F32": np.float32, "I64": np.int64, "U64": np.uint64, "F64": np.float64},
}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One tensor of a file. start: its first byte there."""

    file: MappedFile
    start: int
    header: TensorHeader

    @property
    def array(self) -> Any:
        """As numpy has it, float16 and narrower floats as their bits; nothing is copied where the file is aligned."""
        raw = self.file.bytes[self.start : self.start + self.header.nbytes]
        return aligned(raw, BITS[self.header.dtype]).reshape(self.header.shape)

    def fetch(self) -> None:
        self.file.fetch(self.start, self.start + self.header.nbytes)

    def release(self) -> None:
        self.file.release(self.start, self.start + self.header.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A weight of several tensors. kind: what it is held as. prep: what is done to its rows (prepare.py)."""

    joined: Joined
    parts: tuple[Part, ...]
    kind: str
    prep: tuple[tuple[Scalar, ...], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return prepared_shape(self.joined.header.shape, self.prep)

    @property
    def file_bytes(self) -> int:
        return self.joined.header.nbytes

    @property
    def whole_rows(self) -> bool:
        return by_rows(self.prep)

    def open(self) -> Rows:
        """Rows of it as its kind, leading axes counted together, in their places where only whole rows move."""
        plain = self.joined.open(*(part.array for part in self.parts))
        rows = self.joined.header.shape[-2]
        order = row_order(rows, self.prep) if self.whole_rows else None
        if order is None:
            return lambda begin, end: held_as(plain(begin, end), self.kind)

        def read(begin: int, end: int) -> Tensor:
            """Of one matrix."""
            number, first = divmod(begin, len(order))
            chosen = order[first : first + end - begin] + number * rows
            low = int(chosen.min())
            tensor = plain(low, int(chosen.max()) + 1)
            picked = tensor.moved(lambda array: np.ascontiguousarray(array[chosen - low]))
            return held_as(replace(picked, shape=(end - begin, tensor.shape[-1])), self.kind)

        return read

    def read(self) -> Tensor:
        """All of it as its kind, rows in their places."""
        shape = self.joined.header.shape
        tensor = held_as(self.joined.open(*(part.array for part in self.parts))(0, prod(shape[:-1])), self.kind)
        return prepare(tensor.reshaped(shape), self.prep)

    def fetch(self) -> None:
        for part in self.parts:
            part.fetch()

    def release(self) -> None:
        for part in self.parts:
            part.release()


def row_order(rows: int, prep: tuple[tuple[Scalar, ...], ...]) -> Any:
    """Which of a matrix's rows stands in each row once prepared, int32; None when all stay where they are."""
    if not prep:
        return None
    moved = prepare(Tensor("f32", (rows,), np.arange(rows, dtype=np.int32)), prep)
    return np.ascontiguousarray(moved.data)


def held_as(tensor: Tensor, kind: str) -> Tensor:
    if tensor.kind == kind:
        return tensor
    values = dequantize(tensor)
    return Tensor("f32", tensor.shape, values) if kind == "f32" else rounded(values)


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
        shape = self.header.shape
        return row_order(shape[max(len(shape) - 2, 0)], self.prep)  # of one matrix of a stack

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
