"""Operators of mixtures of experts: which experts a row goes to, the experts' matrices over the rows that chose them,
the sum of their answers; and what decides over them in float32.

A position is one (row, choice) pair. Positions stand by expert and, within one, by row, so that each expert's matrices
meet their rows side by side. An answer is a function of its row alone, whoever else chose the expert.

    linear_f32         x[*, n] -> x W^T (+ b), products and sums in float32: routers and gates, never rounded
    route              logits[T, E] -> ids i32[T, k] ascending, shares f32[T, k]
    dispatch           ids -> begin i32[E + 1], rows i32[kT] of the step, place i32[T, k]: the position of each choice
    expert_linear      x[T, n] by `rows`, or x[kT, n] by position, begin; W[E, m, n], b[E, m]? -> [kT, m]
    combine            y[kT, D], shares, place -> [T, D], experts in ascending order
    gate               x[*, n], g[*, n] or [*, 1] -> x * sigmoid(g)

Legend: T tokens, E experts, k chosen of them, D hidden, F intermediate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.program.builder import Builder, fixed_width
from octavo.program.ir import Op, Program, Size, T
from octavo.program.rules import Numbers, Rule, elements, integer, number, stored_bytes, weights_once
from octavo.types import StepShape

MOST_EXPERTS = 1024
_RULES = ("softmax", "sigmoid")
_GROUP_SCORES = ("best", "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How k experts are chosen and weighed. Equal scores: the lower index, of experts and of groups.

    rule: softmax over all experts, or sigmoid of each. normalize: the shares of a row sum to 1 before `scale`; after
    a softmax that is the softmax over the chosen logits. groups: equal runs of experts of which only the best
    `top_groups` are eligible, by their best expert or (group_score "pairs") by the sum of their two best.
    """

    k: int
    rule: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: str = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """Names of the stacked weights of a layer's experts, and of their biases where there are some."""

    gate: str
    up: str
    down: str
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None


def linear_f32(b: Builder, out: str, x: str, weight: str, bias: str | None = None) -> str:
    """f32 [*, m] = x W[m, n]^T (+ bias [m]); both weights are declared plain."""
    m, n = b.weights[weight].shape
    if fixed_width(b.at(x)) != n or (bias is not None and b.weights[bias].shape != (m,)):
        raise ConfigError(f"{out}: {weight} [{m}, {n}] does not fit {x} or its bias")
    if not b.weights[weight].plain:
        raise ConfigError(f"{out}: {weight} is not held in float32 rows")
    weights = (weight,) if bias is None else (weight, bias)
    b.op("linear_f32", (out,), (x,), ((b.at(x).shape[0], m),), weights)
    return out


def route(b: Builder, ids: str, shares: str, logits: str, routing: Routing, bias: str | None = None) -> tuple[str, str]:
    """bias [E] is added to what chooses, never to the shares."""
    experts, k, groups = fixed_width(b.at(logits)), routing.k, routing.groups
    size = experts // groups if groups > 0 and experts % groups == 0 else 0
    if not 1 <= k <= experts <= MOST_EXPERTS or not size or not k <= routing.top_groups * size <= experts:
        what = f"{k} of {experts} experts in {routing.top_groups} of {groups} groups"
        raise ConfigError(f"{ids}: {what} cannot be chosen", param="num_experts_per_tok")
    if routing.rule not in _RULES or routing.group_score not in _GROUP_SCORES:
        raise ConfigError(f"{ids}: no routing by {routing.rule} and groups by {routing.group_score}")
    if bias is not None and b.weights[bias].shape != (experts,):
        raise ConfigError(f"{ids}: bias {b.weights[bias].shape} does not match {experts} experts")
    b.op(
        "route",
        (ids, shares),
        (logits,),
        ((T, k), (T, k)),
        () if bias is None else (bias,),
        ("i32", "f32"),
        k=k,
        rule=routing.rule,
        normalize=routing.normalize,
        scale=routing.scale,
        groups=groups,
        top_groups=routing.top_groups,
        group_score=routing.group_score,
    )
    return ids, shares


def dispatch(b: Builder, prefix: str, ids: str, experts: int) -> tuple[str, str, str]:
    """Names of begin, rows and place."""
    k = fixed_width(b.at(ids))
    outs = f"{prefix}.begin", f"{prefix}.rows", f"{prefix}.place"
    shapes = (experts + 1,), (Size("T", k),), (T, k)
    b.op("dispatch", outs, (ids,), shapes, (), ("i32", "i32", "i32"), experts=experts)
    return outs


def expert_linear(
    b: Builder, out: str, x: str, begin: str, weight: str, bias: str | None = None, *, rows: str | None = None
) -> str:
    """f32 [kT, m]. rows: x stands by step row; else by position."""
    experts, m, n = b.weights[weight].shape
    if fixed_width(b.at(x)) != n or b.at(begin).shape != (experts + 1,):
        raise ConfigError(f"{out}: {weight} of {experts} experts [{m}, {n}] does not fit {x}")
    if bias is not None and (b.weights[bias].shape != (experts, m) or not b.weights[bias].plain):
        raise ConfigError(f"{out}: {bias} is no plain bias of {experts} experts with {m} rows")
    ins = (x, begin) if rows is None else (x, begin, rows)
    weights = (weight,) if bias is None else (weight, bias)
    b.op("expert_linear", (out,), ins, ((b.at(rows or x).shape[0], m),), weights)
    return out


def combine(b: Builder, out: str, y: str, shares: str, place: str) -> str:
    """f32 [T, D]."""
    b.op("combine", (out,), (y, shares, place), ((T, fixed_width(b.at(y))),))
    return out


def gate(b: Builder, out: str, x: str, g: str) -> str:
    """f32: x * sigmoid(g), one gate an element or one a row."""
    if fixed_width(b.at(g)) not in (1, fixed_width(b.at(x))):
        raise ConfigError(f"{out}: {g} gates neither elements nor rows of {x}")
    b.op("gate", (out,), (x, g), (b.at(x).shape,))
    return out


def mixture(
    b: Builder,
    prefix: str,
    h: str,
    chosen: tuple[str, str],
    w: Matrices,
    *,
    act: str,
    alpha: float = 0.0,
    limit: float = 0.0,
) -> str:
    """f32 [T, D]: the gated MLPs of the chosen experts (ids, shares) over h, weighed and summed. act: see Builder."""
    ids, shares = chosen
    begin, rows, place = dispatch(b, prefix, ids, b.weights[w.gate].shape[0])
    gated = expert_linear(b, f"{prefix}.eg", h, begin, w.gate, w.gate_bias, rows=rows)
    up = expert_linear(b, f"{prefix}.eu", h, begin, w.up, w.up_bias, rows=rows)
    f = b.glu(f"{prefix}.ef", gated, up, act=act, alpha=alpha, limit=limit)
    return combine(b, f"{prefix}.mix", expert_linear(b, f"{prefix}.ed", f, begin, w.down, w.down_bias), shares, place)


# ---- rules


def _expert_cost(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """Of E matrices at most as many are read as there are positions; more rows meet the ones they share."""
    experts, m, n = program.weights[op.weights[0]].shape
    positions = elements(program, op.outs[0], shape, hidden) // m
    stored = sum(stored_bytes(program.weights[name]) for name in op.weights)
    return 2 * m * n * positions, stored * min(experts, positions) // experts, 0


def _dot_cost(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    m = program.weights[op.weights[0]].shape[0]
    _, weight_bytes, _ = weights_once(program, op, shape, hidden)
    return 2 * m * elements(program, op.ins[0], shape, hidden), weight_bytes, 0


def _route_numbers(op: Op) -> tuple[list[int], list[float]]:
    rule, score = _RULES.index(str(op.attrs["rule"])), _GROUP_SCORES.index(str(op.attrs["group_score"]))
    groups, top_groups = integer(op, "groups"), integer(op, "top_groups")
    return [rule, int(bool(op.attrs["normalize"])), groups, top_groups, score], [number(op, "scale")]


COSTS: Mapping[str, Rule] = {
    "linear_f32": _dot_cost,
    "expert_linear": _expert_cost,
    **dict.fromkeys(("route", "dispatch", "combine", "gate"), weights_once),
}
NUMBERS: Mapping[str, Numbers] = {"route": _route_numbers}
ROW_OPS = ("route", "gate")
