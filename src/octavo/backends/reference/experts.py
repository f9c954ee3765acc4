"""Operators of mixtures of experts, as program/experts.py states them, in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from octavo.backends.reference.step import Pages, Step
from octavo.program.ir import Op

Values = Sequence[torch.Tensor]
Result = torch.Tensor | tuple[torch.Tensor, ...] | None
Function = Callable[[Op, Values, Values, Step, Pages], Result]


def linear_f32(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return functional.linear(ins[0], *weights)


def route(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """(ids int64 [T, k], shares [T, k])."""
    logits, attrs = ins[0], _attrs(op)
    sigmoid = attrs["rule"] == "sigmoid"
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    choice = scores if sigmoid else logits
    if weights:
        choice = choice + weights[0]
    if attrs["top_groups"] != attrs["groups"]:
        choice = choice.masked_fill(~_eligible(op, choice), -torch.inf)
    ids = _best(choice, attrs["k"]).sort(-1).values
    shares = scores.gather(-1, ids)
    if attrs["normalize"]:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return ids, shares * attrs["scale"]


def _eligible(op: Op, choice: torch.Tensor) -> torch.Tensor:
    """bool [T, E]: whose group is among the best."""
    attrs = _attrs(op)
    groups = attrs["groups"]
    grouped = choice.reshape(len(choice), groups, -1)
    most = min(2 if attrs["group_score"] == "pairs" else 1, grouped.shape[-1])
    best = _best(grouped.topk(most).values.sum(-1), attrs["top_groups"])
    kept = torch.zeros(len(choice), groups, dtype=torch.bool).scatter(-1, best, True)
    return kept.repeat_interleave(grouped.shape[-1], -1)


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the largest, the lower one where they are equal."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def dispatch(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """(begin [E + 1], rows [kT], place [T, k])."""
    ids, experts = ins[0].flatten(), _attrs(op)["experts"]
    order = ids.sort(stable=True).indices
    begin = functional.pad(torch.bincount(ids, minlength=experts).cumsum(0), (1, 0))
    return begin, order // ins[0].shape[1], order.argsort().reshape(ins[0].shape)


def expert_linear(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    x, begin = ins[0] if len(ins) == 2 else ins[0][ins[2]], ins[1].tolist()
    out = x.new_empty(len(x), weights[0].shape[1])
    for expert, (first, last) in enumerate(pairwise(begin)):
        out[first:last] = functional.linear(x[first:last], *(weight[expert] for weight in weights))
    return out


def combine(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    y, shares, place = ins
    return (y[place] * shares[..., None]).sum(1)


def gate(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return ins[0] * ins[1].sigmoid()


def _attrs(op: Op) -> Mapping[str, Any]:
    return op.attrs


OPERATORS: dict[str, Function] = {
    function.__name__: function for function in (linear_f32, route, dispatch, expert_linear, combine, gate)
}
