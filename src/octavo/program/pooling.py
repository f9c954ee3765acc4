"""A plain program made to end in one vector a request instead of logits: for embeddings.

An encoder exports the states of its last layer as "hidden"; a decoder takes the rows whose logits are wanted, norms
them and multiplies them by the head, which is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.errors import ConfigError
from octavo.program.ir import Buffer, N, Op, Program, Scalar

MODES = ("last", "mean", "cls")
POOLED = "pooled"
UNIT_EPS = 1e-24  # of a sum of squares: zeros stay zeros


@dataclass(frozen=True, slots=True)
class Pooling:
    """mode: a request's last row, the mean of all, or its first (cls). unit: the vector is scaled to length 1.

    whole: the request must be computed in one step and finds nothing in the cache: a mode that reads more than the last
    row, or attention in both directions, needs all of its rows at once.
    """

    mode: str
    unit: bool
    whole: bool


def embeds(program: Program) -> bool:
    """Whether it has states and no logits."""
    return "hidden" in program.exports


def causal(program: Program) -> bool:
    return all(op.attrs.get("causal", True) for op in program.ops)


def pooled(program: Program, pooling: Pooling) -> Program:
    """The same program up to its last norm, and POOLED f32 [N, D] as its one export."""
    if pooling.mode not in MODES:
        raise ConfigError(f"pooling {pooling.mode!r} is not one of {', '.join(MODES)}", param="pooling")
    ops, states, last = _states(program, pooling.mode)
    width = program.buffers[states].shape[-1]
    buffers = {name: replace(b, kind="value") if b.kind == "export" else b for name, b in program.buffers.items()}

    def append(op: Op, rows: str) -> None:
        ops.append(op)
        buffers[rows] = Buffer(rows, (N, width))

    if last is not None and pooling.mode == "last":
        append(Op("pool", (states,), ("taken",), (), {"mode": "last"}), "taken")
        append(replace(last, ins=("taken",), outs=("vector",)), "vector")
    else:
        if last is not None:
            ops.append(replace(last, ins=(states,), outs=("normed",)))
            buffers["normed"] = Buffer("normed", program.buffers[states].shape)
        source = states if last is None else "normed"
        append(Op("pool", (source,), ("vector",), (), {"mode": pooling.mode}), "vector")
    if pooling.unit:
        unit: dict[str, Scalar] = {"eps": UNIT_EPS, "rule": "l2", "order": "llama", "heads": 0}
        append(Op("norm", ("vector",), (POOLED,), (), unit), POOLED)
    else:
        ops[-1] = replace(ops[-1], outs=(POOLED,))
        buffers[POOLED] = Buffer(POOLED, (N, width))
    buffers[POOLED] = replace(buffers[POOLED], kind="export")
    return _without_the_rest(replace(program, ops=tuple(ops), buffers=buffers, exports=(POOLED,)))


def _states(program: Program, mode: str) -> tuple[list[Op], str, Op | None]:
    """(operators that make the states [T, D], their name, the norm that is still to come)."""
    if embeds(program):
        return list(program.ops), "hidden", None
    for number, op in enumerate(program.ops):
        if op.kind == "take" and op.ins[1] == "logit_row":
            last = next((other for other in program.ops if other.kind == "norm" and op.outs[0] in other.ins), None)
            if last is not None:
                return list(program.ops[:number]), op.ins[0], last
    raise ConfigError(f"{program.name}: the program has no last norm to pool behind", code="unsupported")


def _without_the_rest(program: Program) -> Program:
    """Without the values and weights that no operator touches any more."""
    used = {name for op in program.ops for name in (*op.ins, *op.outs)}
    weights = {name for op in program.ops for name in op.weights}
    return replace(
        program,
        buffers={n: b for n, b in program.buffers.items() if n in used or b.kind in ("header", "cache", "slot")},
        weights={name: weight for name, weight in program.weights.items() if name in weights},
    )
