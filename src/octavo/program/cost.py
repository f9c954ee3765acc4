"""FLOPs and bytes of every operator for a step: what memory planning, the roofline and `octavo explain` read.

Counted as FLOPs: matrix products and attention, a multiply-add as 2 (elementwise work is bounded by its bytes). Bytes:
weights once an operator, cached keys and values once a request, and each value once for every operator that reads or
writes it. cost(fused) = sum of its parts - bytes of the values that vanished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.errors import EngineError
from octavo.program.ir import Op, Program, Weight
from octavo.types import StepShape

# Integer activations: their planes and, a byte an element, the scale and the sums of 32 columns.
_VALUE_BYTES = {"f32": 4, "act": 4, "i32": 4, "bf16": 2, "i15": 3, "i8g32": 2, "i15g32": 3, "token": 0}
# What a linear eats -> what its products are made of, and how many for one multiply-add (two planes of int8 are two).
_PRODUCTS = {"f32": ("f32", 1), "act": ("f32", 1), "bf16": ("bf16", 1), "i8g32": ("int8", 1)}
_PRODUCTS |= dict.fromkeys(("i15", "i15g32"), ("int8", 2))
# Bytes per element of a matrix whose size in memory is not known; scales of i8 and u4 at group 32 with f16 pairs.
_ASSUMED = {"f32": 4.0, "bf16": 2.0, "i8": 1.125, "u4": 0.625, None: 2.0}


@dataclass(frozen=True, slots=True)
class Cost:
    """One operator, or many, in one step. Bytes: weights read, cache read and written, values read and written."""

    flops: int = 0
    weight_bytes: int = 0
    cache_bytes: int = 0
    value_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.value_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.cache_bytes + other.cache_bytes,
            self.value_bytes + other.value_bytes,
        )


def program_cost(program: Program, shape: StepShape) -> Cost:
    """One step of the whole program."""
    total = Cost()
    for op in program.ops:
        total = total + op_cost(program, op, shape)
    return total


def op_cost(program: Program, op: Op, shape: StepShape) -> Cost:
    if not op.parts:
        return _leaf_cost(program, op, shape, {})
    hidden = _vanished(program, op)
    total = Cost()
    for part in op.parts:
        total = total + _leaf_cost(program, part, shape, hidden)
    traffic = sum(
        _elements(program, name, shape, hidden) * 4
        for part in op.parts
        for name in (*part.ins, *part.outs)
        if name in hidden
    )
    return total + Cost(value_bytes=-traffic)


def op_product(program: Program, op: Op) -> tuple[str, int]:
    """What the matrix products of an operator are made of (f32, bf16, int8), and how many for one multiply-add."""
    for leaf in op.parts or (op,):
        if leaf.kind == "linear":
            held = {program.weights[name].kind for name in leaf.weights[:1]}
            return (
                _PRODUCTS["f32"] if held == {"f32"} else _PRODUCTS.get(program.buffers[leaf.ins[0]].dtype, ("bf16", 1))
            )
        if leaf.kind == "attention":
            return _PRODUCTS["f32" if program.stage in ("plain", "bound") else "bf16"]
    return _PRODUCTS["f32"]


def entry_bytes(program: Program, op: Op) -> int:
    """Bytes that one token has in the two caches of an operator; 0 for one without."""
    names = {op.attrs.get("cache_k"), op.attrs.get("cache_v")}
    return sum(tensor.bytes for group in program.groups for tensor in group.tensors if tensor.name in names)


def stored_bytes(weight: Weight) -> int:
    """Bytes in memory: as bound, else assumed from the kind (vectors are f32, unbound matrices bf16)."""
    if weight.stored_bytes is not None:
        return weight.stored_bytes
    elements = 1
    for axis in weight.shape:
        elements *= axis
    return int(elements * (4.0 if len(weight.shape) == 1 else _ASSUMED[weight.kind]))


def attended(shape: StepShape, window: int = 0) -> int:
    """Keys that the step's rows attend to, summed over rows; a row sees itself and at most `window` keys."""
    total = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        last = context + rows
        total += _triangle(last, window) - _triangle(context, window)
    return total


def _triangle(length: int, window: int) -> int:
    """Keys attended by the rows 0 .. length - 1."""
    full = min(length, window) if window else length
    return full * (full + 1) // 2 + (length - full) * window


def _vanished(program: Program, op: Op) -> dict[str, Op]:
    """Values that exist inside a fused operator only -> the part that writes them."""
    return {name: part for part in op.parts for name in part.outs if name not in program.buffers}


def _elements(program: Program, name: str, shape: StepShape, hidden: Mapping[str, Op]) -> int:
    """How many elements a value holds; one that vanished is as large as its writer makes it."""
    if name not in hidden:
        total = 1
        for axis in program.buffers[name].shape:
            total *= axis if isinstance(axis, int) else axis.at(shape)
        return total
    part = hidden[name]
    inner = _elements(program, part.ins[0], shape, hidden)
    if part.kind != "linear":
        return inner
    m, n = program.weights[part.weights[0]].shape
    return inner // n * m


def _traffic(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> int:
    return sum(
        _elements(program, name, shape, hidden) * (4 if name in hidden else _VALUE_BYTES[program.buffers[name].dtype])
        for name in (*op.ins, *op.outs)
    )


def _leaf_cost(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> Cost:
    if op.kind not in _RULES:
        raise EngineError(f"{program.name}: operator {op.kind} has no cost rule")
    flops, weight_bytes, cache_bytes = _RULES[op.kind](program, op, shape, hidden)
    if op.kind in ("embed", "take"):  # only the rows that are chosen are read
        out = _elements(program, op.outs[0], shape, hidden) * 4
        rows = _elements(program, op.ins[-1], shape, hidden) * 4
        return Cost(flops, weight_bytes, cache_bytes, out + rows + (out if op.kind == "take" else 0))
    return Cost(flops, weight_bytes, cache_bytes, _traffic(program, op, shape, hidden))


_Rule = Callable[[Program, Op, StepShape, Mapping[str, Op]], tuple[int, int, int]]


def _weights(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """Elementwise: its weights once."""
    return 0, sum(stored_bytes(program.weights[name]) for name in op.weights), 0


def _embed(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """One row of the table a token."""
    table = program.weights[op.weights[0]]
    return 0, stored_bytes(table) // table.shape[0] * shape.tokens, 0


def _linear(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    m = program.weights[op.weights[0]].shape[0]
    flops = 2 * m * _elements(program, op.ins[0], shape, hidden)
    return flops, sum(stored_bytes(program.weights[name]) for name in op.weights), 0


def _kv_write(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    return 0, 0, shape.tokens * entry_bytes(program, op)


def _attention(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """2 for q k^T and 2 for p v per head, dimension and key; each request's visible entries are read once."""
    window = _integer(op, "window")
    width = _elements(program, op.ins[0], shape, hidden) // max(shape.tokens, 1)
    keys = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        keys += min(context + rows, rows + window - 1) if window else context + rows
    return 4 * width * attended(shape, window), 0, keys * entry_bytes(program, op)


def _integer(op: Op, name: str) -> int:
    value = op.attrs[name]
    if not isinstance(value, int):
        raise EngineError(f"{op.outs[0]}: {name} is {value!r}, not an integer")
    return value


_RULES: Mapping[str, _Rule] = {
    "embed": _embed,
    "linear": _linear,
    "kv_write": _kv_write,
    "attention": _attention,
    **dict.fromkeys(("take", "norm", "add", "concat", "glu", "quantize", "rope_angles", "rope"), _weights),
}
