"""Where the values of a program live: which share memory, and how wide a row is in it.

A value belongs to a region of the program's arena; a region is handed on when its value dies. A region's size is
evaluated at each step from the step's own T, R and N, so a small step stays in cache. Exports own their region: they
outlive the step. Pure: no memory is touched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import UnsupportedError
from octavo.program.ir import Buffer, Op, Program, Size

K_ALIGN = 32  # columns of what a linear eats are padded to this with zeros
# Of 32 columns (native/activation.h).
RECORD_BYTES = {"i15": 96, "i8g32": 64, "i15g32": 96, "i15q": 96, "i8row": 96, "i8x": 96}
LINE_BYTES = 64
ALIAS_BYTES = 4096  # rows at this distance share the same sets of the first cache

# Operator -> positions of inputs whose memory its output may take over, element by element.
IN_PLACE: Mapping[str, tuple[int, ...]] = {"fused.linear_add": (1,), "add": (0, 1), "rope": (0,), "cap": (0,)}


@dataclass(frozen=True, slots=True)
class Place:
    """A region, and the distance between rows in elements."""

    region: int
    ld: int


@dataclass(frozen=True, slots=True)
class Arena:
    places: Mapping[str, Place]
    regions: int


def rows_of(buffer: Buffer) -> Size:
    """The first axis; a fixed one is 0 * T + n."""
    first = buffer.shape[0]
    return first if isinstance(first, Size) else Size("T", 0, first)


def width_of(buffer: Buffer) -> int:
    if len(buffer.shape) == 1:
        return 1
    if len(buffer.shape) != 2 or not isinstance(buffer.shape[1], int):
        raise UnsupportedError(f"{buffer.name}: a value of shape {buffer.shape} has no layout")
    return buffer.shape[1]


def leading(buffer: Buffer) -> int:
    """Elements from row to row: f32 values are dense, bf16 values padded, records of integers counted in bytes."""
    width = width_of(buffer)
    if buffer.dtype in RECORD_BYTES:
        row = -(-width // K_ALIGN) * RECORD_BYTES[buffer.dtype]
        ld = -(-row // LINE_BYTES) * LINE_BYTES
        return ld + LINE_BYTES if ld % ALIAS_BYTES == 0 else ld
    if buffer.dtype != "bf16":
        return width
    ld = -(-width // K_ALIGN) * K_ALIGN
    return ld + K_ALIGN if ld * 2 % ALIAS_BYTES == 0 else ld


def stride_bytes(buffer: Buffer) -> int:
    """From row to row."""
    return leading(buffer) * (1 if buffer.dtype in RECORD_BYTES else 2 if buffer.dtype == "bf16" else 4)


def place(program: Program) -> Arena:
    """Regions by lifetime, in one walk over the operators."""
    last_use = {name: i for i, op in enumerate(program.ops) for name in op.ins}
    regions = _Regions()
    for i, op in enumerate(program.ops):
        dying = [name for name in op.ins if last_use[name] == i and name in regions.places]
        for out in op.outs:
            buffer = program.buffers[out]
            if buffer.dtype == "token":
                continue
            heir = _in_place(program, op, buffer, dying) if buffer.kind == "value" else None
            if heir is not None:
                dying.remove(heir)
                regions.hand_over(heir, buffer)
            else:
                regions.take(buffer)
            if buffer.kind == "value" and out not in last_use:
                dying.append(out)
        for name in dict.fromkeys(dying):
            if program.buffers[name].kind == "value":
                regions.give_back(name)
    return Arena(regions.places, regions.count)


def _in_place(program: Program, op: Op, out: Buffer, dying: list[str]) -> str | None:
    """An input that dies here and whose rows lie exactly as the output's will."""
    for position in IN_PLACE.get(op.kind, ()):
        name = op.ins[position]
        buffer = program.buffers[name]
        same = buffer.dtype == out.dtype and buffer.shape == out.shape
        if name in dying and same and buffer.kind == "value" and op.ins.count(name) == 1:
            return name
    return None


class _Regions:
    """Regions in use and free ones, by the shape of rows they were last used for: equal shapes are reused first."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.count = 0
        self._shape: dict[str, tuple[Size, int]] = {}
        self._free: list[tuple[Size, int, int]] = []  # rows, bytes of a row, region

    def take(self, buffer: Buffer) -> None:
        rows, row_bytes = self._measure(buffer)
        region = None
        if buffer.kind == "value":
            equal = [free for free in self._free if free[:2] == (rows, row_bytes)]
            alike = [free for free in self._free if free[0] == rows]
            chosen = equal[-1] if equal else max(alike, key=lambda free: free[1], default=None)
            if chosen is not None:
                self._free.remove(chosen)
                region = chosen[2]
        if region is None:
            region = self.count
            self.count += 1
        self.places[buffer.name] = Place(region, leading(buffer))
        self._shape[buffer.name] = (rows, row_bytes)

    def hand_over(self, old: str, buffer: Buffer) -> None:
        self.places[buffer.name] = self.places[old]
        self._shape[buffer.name] = self._shape[old]

    def give_back(self, name: str) -> None:
        self._free.append((*self._shape[name], self.places[name].region))

    @staticmethod
    def _measure(buffer: Buffer) -> tuple[Size, int]:
        return rows_of(buffer), stride_bytes(buffer)
