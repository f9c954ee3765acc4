"""The program: a flat, single-assignment list of operators over named buffers. Plain data, written once at load.

Sizes are affine in T (tokens of the step), R (logit rows) or N (requests). Every name is written by one operator, so
order is data dependence; caches are touched only by operators that take and return a token value ("3.kv").
The operators and their meaning: docs/program.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.types import KVGroup, StepShape

Scalar = int | float | str | bool | None | tuple[int, ...] | tuple[float, ...]
Symbol = Literal["T", "R", "N"]
DType = Literal["f32", "bf16", "i8", "i15", "i8g32", "i15g32", "i15q", "i8row", "i8x", "act", "i32", "token"]
BufferKind = Literal["header", "value", "export", "foreign", "cache", "slot"]


@dataclass(frozen=True, slots=True)
class Size:
    """a * symbol + b: an upper bound on one axis."""

    symbol: Symbol
    a: int = 1
    b: int = 0

    def at(self, shape: StepShape) -> int:
        return self.a * {"T": shape.tokens, "R": shape.logit_rows, "N": shape.requests}[self.symbol] + self.b

    def __str__(self) -> str:
        head = self.symbol if self.a == 1 else f"{self.a}{self.symbol}"
        return f"{head}+{self.b}" if self.b else head


T, R, N = Size("T"), Size("R"), Size("N")
Axis = int | Size


@dataclass(frozen=True, slots=True)
class Buffer:
    """One named value. dtype `act` is what the next linear eats: f32 in a plain program; once quantized a kind of
    lower.ACTIVATION_KINDS.

    kind: header (filled by the runner), value (written once, dies at its last use), export (a value kept until the
    next launch), foreign ("PROGRAM/EXPORT": one of the session's exports, read by feeds alone), cache (hangs on a KV
    group), slot (fixed size per request slot). layout is set by lowering alone.
    """

    name: str
    shape: tuple[Axis, ...]
    dtype: DType = "f32"
    kind: BufferKind = "value"
    layout: Literal["rows", "tiles"] = "rows"


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint. sources: format ("hf", "gguf") -> name in the file. prep: steps, as data:
    ("unpermute_rope", heads[, rotary]): the (first) rows of each head stand in interleaved rotary order; bring them to
    half-split order. ("head_rows", heads, begin, end, ...): these rows of each head. ("flatten_heads",): [heads, m, n]
    as [heads m, n]. ("transpose_heads", heads): the matrix of each head turned. Further ones: weights/prepare.py.

    others: further names, of other generations of files. "{e}" in a name: a stack (weights/stack.py).
    plain: held as f32, row after row, whatever the file has: routers, gates, the experts' biases.
    floats: held as bf16 where the file has integers.
    kind: what it is held as in memory ("f32", "bf16", "i8", "u4", ...: weights/kinds.py); None until lowering binds it.
    """

    name: str
    shape: tuple[int, ...]
    sources: Mapping[str, str]
    prep: tuple[tuple[Scalar, ...], ...] = ()
    plain: bool = False
    others: tuple[str, ...] = ()
    floats: bool = False
    kind: str | None = None
    stored_bytes: int | None = None  # bytes in memory, known once bound; else the cost rules assume bf16


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. parts: the plain operators that a fused or quantized one stands for; the reference runs those."""

    kind: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Scalar] = field(default_factory=dict)
    parts: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """ops in a topological order; buffers and weights by name; groups: where the caches hang; exports: by name.

    spare: beginnings of names of tensors that a checkpoint may hold and this program does not use.
    """

    name: str
    ops: tuple[Op, ...]
    buffers: Mapping[str, Buffer]
    weights: Mapping[str, Weight]
    groups: tuple[KVGroup, ...]
    exports: tuple[str, ...]
    stage: Literal["plain", "bound", "quantized", "fused"] = "plain"
    spare: tuple[str, ...] = ()

    @property
    def cache_group(self) -> dict[str, int]:
        """Cache tensor name -> index of its group."""
        return {tensor.name: i for i, group in enumerate(self.groups) for tensor in group.tensors}
