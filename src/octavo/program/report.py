"""A program as a table: every operator with shapes, weight bytes and FLOPs, and what a token and a prompt cost.

Made from the configuration and the tensor headers alone; no weight is read. `octavo explain` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.program.cost import op_cost, program_cost
from octavo.program.ir import Axis, Op, Program
from octavo.program.rules import Cost, stored_bytes
from octavo.types import StepShape

PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class ExplainRow:
    """One operator. ins, outs: name, shape, dtype; weights: name, shape, kind; costs of one step each."""

    number: int
    kind: str
    parts: tuple[str, ...]
    ins: tuple[tuple[str, str, str], ...]
    outs: tuple[tuple[str, str, str], ...]
    weights: tuple[tuple[str, tuple[int, ...], str], ...]
    weight_bytes: int
    token: Cost
    prompt: Cost


@dataclass(frozen=True, slots=True)
class ExplainTotals:
    """The whole program. weight_bytes counts a shared weight once; assumed: some sizes were guessed from the kind.

    kv_bytes_per_token: by KV group; state_bytes: of a sequence whatever its length, by group of recurrent state.
    """

    parameters: int
    weight_bytes: int
    assumed: bool
    kv_bytes_per_token: tuple[tuple[str, int], ...]
    state_bytes: tuple[tuple[str, int], ...]
    token: Cost
    prompt: Cost


def explain_rows(program: Program, context: int = 0) -> list[ExplainRow]:
    """One row an operator, in order. context: tokens in the cache before the one token."""
    token, prompt = StepShape.decode(1, context), StepShape.prefill(PROMPT_TOKENS)
    return [_row(program, number, op, token, prompt) for number, op in enumerate(program.ops)]


def explain_totals(program: Program, context: int = 0) -> ExplainTotals:
    weights = program.weights.values()
    return ExplainTotals(
        parameters=sum(_count(weight.shape) for weight in weights),
        weight_bytes=sum(stored_bytes(weight) for weight in weights),
        assumed=any(weight.stored_bytes is None for weight in weights),
        kv_bytes_per_token=tuple((g.name, g.bytes_per_token) for g in program.groups if g.rule != "state"),
        state_bytes=tuple((g.name, g.bytes_per_sequence) for g in program.groups if g.rule == "state"),
        token=program_cost(program, StepShape.decode(1, context)),
        prompt=program_cost(program, StepShape.prefill(PROMPT_TOKENS)),
    )


def _row(program: Program, number: int, op: Op, token: StepShape, prompt: StepShape) -> ExplainRow:
    weights = [program.weights[name] for name in op.weights]
    return ExplainRow(
        number=number,
        kind=op.kind,
        parts=tuple(part.kind for part in op.parts),
        ins=_shapes(program, op.ins),
        outs=_shapes(program, op.outs),
        weights=tuple((weight.name, weight.shape, weight.kind or "unbound") for weight in weights),
        weight_bytes=sum(stored_bytes(weight) for weight in weights),
        token=op_cost(program, op, token),
        prompt=op_cost(program, op, prompt),
    )


def _shapes(program: Program, names: Iterable[str]) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, _shape(program.buffers[name].shape), program.buffers[name].dtype) for name in names)


def _shape(axes: tuple[Axis, ...]) -> str:
    return f"[{', '.join(str(axis) for axis in axes)}]" if axes else ""


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for axis in shape:
        total *= axis
    return total
