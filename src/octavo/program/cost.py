"""FLOPs and bytes of every operator for a step: what memory planning, the roofline and `octavo explain` read.

Counted as FLOPs: matrix products and attention, a multiply-add as 2 (elementwise work is bounded by its bytes). Bytes:
weights once an operator, cached keys and values once a request, and each value once for every operator that reads or
writes it. cost(fused) = sum of its parts - bytes of the values that vanished.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.errors import EngineError
from octavo.program import experts, latent, recurrence
from octavo.program.ir import Op, Program
from octavo.program.rules import Cost, Rule, elements, entry_bytes, integer, stored_bytes, weights_once
from octavo.types import StepShape

# Integer activations: their planes and, a byte an element, the scale and the sums of 32 columns.
_VALUE_BYTES = {"f32": 4, "act": 4, "i32": 4, "bf16": 2, "i15": 3, "i8g32": 2, "i15g32": 3, "token": 0}
_VALUE_BYTES |= {"i15q": 3, "i8row": 3, "i8x": 3}
# What a linear eats -> what its products are made of, and how many for one multiply-add: two planes of int8 are two,
# and a quarter of the blocks of i15q has two.
_PRODUCTS: dict[str, tuple[str, float]] = {"f32": ("f32", 1), "act": ("f32", 1), "bf16": ("bf16", 1)}
_PRODUCTS |= {"i8g32": ("int8", 1), "i15q": ("int8", 1.25)}
_PRODUCTS |= dict.fromkeys(("i15", "i15g32", "i8row", "i8x"), ("int8", 2))


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
        elements(program, name, shape, hidden) * 4
        for part in op.parts
        for name in (*part.ins, *part.outs)
        if name in hidden
    )
    return total + Cost(value_bytes=-traffic)


def op_product(program: Program, op: Op) -> tuple[str, float]:
    """What the matrix products of an operator are made of (f32, bf16, int8), and how many for one multiply-add."""
    for leaf in op.parts or (op,):
        if leaf.kind in ("linear", "expert_linear", "head_linear"):
            held = {program.weights[name].kind for name in leaf.weights[:1]}
            return (
                _PRODUCTS["f32"] if held == {"f32"} else _PRODUCTS.get(program.buffers[leaf.ins[0]].dtype, ("bf16", 1))
            )
        if leaf.kind in ("attention", "latent_attention", "index_topk"):
            return _PRODUCTS["f32" if program.stage in ("plain", "bound") else "bf16"]
    return _PRODUCTS["f32"]


def attended(shape: StepShape, window: int = 0) -> int:
    """Keys that the step's rows attend to, summed over rows; a row sees itself and at most `window` keys."""
    total = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        last = context + rows
        total += _triangle(last, window) - _triangle(context, window)
    return total


def _all_pairs(shape: StepShape) -> int:
    """The same where every row sees its whole request."""
    return sum(rows * (context + rows) for rows, context in zip(shape.rows, shape.contexts, strict=True))


def _triangle(length: int, window: int) -> int:
    """Keys attended by the rows 0 .. length - 1."""
    full = min(length, window) if window else length
    return full * (full + 1) // 2 + (length - full) * window


def _vanished(program: Program, op: Op) -> dict[str, Op]:
    """Values that exist inside a fused operator only -> the part that writes them."""
    return {name: part for part in op.parts for name in part.outs if name not in program.buffers}


def _traffic(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> int:
    return sum(
        elements(program, name, shape, hidden) * (4 if name in hidden else _VALUE_BYTES[program.buffers[name].dtype])
        for name in (*op.ins, *op.outs)
    )


def _leaf_cost(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> Cost:
    if op.kind not in _RULES:
        raise EngineError(f"{program.name}: operator {op.kind} has no cost rule")
    flops, weight_bytes, cache_bytes = _RULES[op.kind](program, op, shape, hidden)
    if op.kind in ("embed", "take", "feed"):  # only the rows that are chosen are read
        out = elements(program, op.outs[0], shape, hidden) * 4
        rows = elements(program, op.ins[-1], shape, hidden) * 4
        return Cost(flops, weight_bytes, cache_bytes, out + rows + (0 if op.kind == "embed" else out))
    return Cost(flops, weight_bytes, cache_bytes, _traffic(program, op, shape, hidden))


def _embed(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """One row of the table a token."""
    table = program.weights[op.weights[0]]
    return 0, stored_bytes(table) // table.shape[0] * shape.tokens, 0


def _linear(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    m = program.weights[op.weights[0]].shape[0]
    flops = 2 * m * elements(program, op.ins[0], shape, hidden)
    return flops, sum(stored_bytes(program.weights[name]) for name in op.weights), 0


def _kv_write(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    return 0, 0, shape.tokens * entry_bytes(program, op)


def _attention(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """2 for q k^T and 2 for p v per head, dimension and key; each request's visible entries are read once."""
    window = integer(op, "window")
    width = elements(program, op.ins[0], shape, hidden) // max(shape.tokens, 1)
    keys = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        keys += min(context + rows, rows + window - 1) if window else context + rows
    seen = attended(shape, window) if op.attrs["causal"] else _all_pairs(shape)
    return 4 * width * seen, 0, keys * entry_bytes(program, op)


_RULES: Mapping[str, Rule] = {
    "embed": _embed,
    "linear": _linear,
    "kv_write": _kv_write,
    "attention": _attention,
    **experts.COSTS,
    **recurrence.COSTS,
    **dict.fromkeys(("take", "feed", "norm", "add", "concat", "glu", "act", "cap", "pool"), weights_once),
    **dict.fromkeys(("quantize", "rope_angles", "rope"), weights_once),
    **latent.COSTS,
}
