"""Stacks: one weight [E, m, n] made of E matrices, and the names under which files hold the experts' ones.

A source with "{e}" in it is a stack: a tensor for each e from 0 on; or, in files that hold all experts of a layer in
one tensor, "experts.gate_up_proj" [E, 2 m, n] (gate rows first) and "experts.down_proj".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.errors import BadFileError
from octavo.program.ir import Scalar
from octavo.weights.catalogue import TensorHeader, quoted
from octavo.weights.kinds import Tensor
from octavo.weights.stored import Assembled, Stored

EXPERT = "{e}"
# End of a stack's name -> the tensor of all experts, and which half of its rows this is.
WHOLE = {
    "gate_proj.weight": ("gate_up_proj", 0),
    "up_proj.weight": ("gate_up_proj", 1),
    "down_proj.weight": ("down_proj", -1),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stack stands: its tensors, and what has to be done to get its rows. header: of the whole stack."""

    names: tuple[str, ...]
    header: TensorHeader
    prep: tuple[tuple[Scalar, ...], ...] = ()


def find_stack(headers: Mapping[str, TensorHeader], source: str) -> Place | None:
    """None where the file has no such tensors. Raises BadFileError for matrices that are not alike."""
    names: list[str] = []
    while (name := source.replace(EXPERT, str(len(names)))) in headers:
        names.append(name)
    if names:
        first = headers[names[0]]
        odd = next((n for n in names if (headers[n].shape, headers[n].dtype) != (first.shape, first.dtype)), None)
        if odd is not None:
            what = f"is {headers[odd].dtype} {list(headers[odd].shape)}, {quoted(names[0])} another"
            raise BadFileError(f"{quoted(odd)} {what}", code="odd_expert", param=odd)
        nbytes = sum(headers[name].nbytes for name in names)
        return Place(tuple(names), TensorHeader(source, (len(names), *first.shape), first.dtype, nbytes))
    prefix, _, tail = source.partition(f"{EXPERT}.")
    whole, half = WHOLE.get(tail, ("", -1))
    header = headers.get(prefix + whole)
    if header is None or len(header.shape) != 3:
        return None
    experts, rows, columns = header.shape
    if half < 0:
        return Place((header.name,), header)
    stack = TensorHeader(source, (experts, rows // 2, columns), header.dtype, header.nbytes // 2)
    return Place((header.name,), stack, (("rows", half * (rows // 2), 1, rows // 2),))


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """A weight whose matrices stand in tensors of their own, of one format."""

    parts: tuple[Stored | Assembled, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].shape)

    @property
    def kind(self) -> str:
        return self.parts[0].kind

    @property
    def file_bytes(self) -> int:
        return sum(part.file_bytes for part in self.parts)

    def read(self) -> Tensor:
        """All of it, with a leading axis over the matrices."""
        held = [part.read() for part in self.parts]
        names = ("data", "scale", "bias", "super_scale", "super_bias", "zero")
        arrays = {name: [getattr(one, name) for one in held] for name in names}
        stacked = {name: None if each[0] is None else np.stack(each) for name, each in arrays.items()}
        first = held[0]
        return Tensor(first.kind, (len(held), *first.shape), group=first.group, offset=first.offset, **stacked)

    def fetch(self) -> None:
        for part in self.parts:
            part.fetch()

    def release(self) -> None:
        for part in self.parts:
            part.release()
