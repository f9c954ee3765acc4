"""Operators of recurrent state, as program/recurrence.py states them, in torch: token by token.

Legend: T tokens, C channels, n value heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from octavo.backends.reference.states import Walk
from octavo.backends.reference.step import Pages, Step
from octavo.program.ir import Op

Values = Sequence[torch.Tensor]
Result = torch.Tensor | tuple[torch.Tensor, ...] | None
Function = Callable[[Op, Values, Values, Step, Pages], Result]

EPSILON = 1e-6  # of the sum of squares of q and k


def conv_state(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    x, w, name, held = ins[0], weights[0][:, 0], str(op.attrs["state"]), int(_attr(op, "taps")) - 1
    states, out = pages.states, torch.zeros_like(x)
    for walk in states.walks:
        slot, tail = states.slots[name][walk.slot], states.tails[name][walk.slot]
        inputs = torch.cat((slot.reshape(held, -1), tail[: walk.replay], x[walk.firm]))
        if walk.firm.stop > walk.firm.start:
            out[walk.firm] = (inputs[walk.replay :].unfold(0, held + 1, 1) * w).sum(-1)
        for row in walk.drafts:
            path = torch.cat((inputs[-held:], x[_path(step, walk, row)]))
            out[row] = (path[-held - 1 :].T * w).sum(-1)
        for tokens, snapshot in walk.snapshots:
            states.snapshots[name][snapshot] = inputs[tokens : tokens + held].flatten()
        slot.copy_(inputs[-held:].flatten())
        tail[: len(walk.drafts)] = x[list(walk.drafts)]
    return functional.silu(out)


def delta_gates(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    b, a = ins[0].chunk(2, dim=-1)
    a_log, dt_bias = weights
    return torch.exp(-a_log.exp() * functional.softplus(a + dt_bias)), b.sigmoid()


def delta_rule(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    x, decay, beta = ins
    key_heads, key_dim, heads, value_dim = (int(_attr(op, n)) for n in ("key_heads", "key_dim", "heads", "value_dim"))
    name, states = str(op.attrs["state"]), pages.states
    q, kv = x[:, : key_heads * key_dim], x[:, key_heads * key_dim :]
    kept = torch.cat((kv, decay, beta), dim=1)  # what a draft leaves in the tail
    query = _unit(q, key_heads, heads) / key_dim**0.5
    ends = (0, key_heads * key_dim, kv.shape[1], kept.shape[1])
    out = torch.zeros(len(x), heads, value_dim)

    def advance(state: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        keys, values, gates = (entry[begin:end] for begin, end in pairwise(ends))
        decays, betas = gates.chunk(2)
        k = _unit(keys[None], key_heads, heads)[0]
        state = state * decays[:, None, None]
        delta = (values.reshape(heads, value_dim) - (state * k[..., None]).sum(1)) * betas[:, None]
        return state + k[..., None] * delta[:, None]

    for walk in states.walks:
        state = states.slots[name][walk.slot].reshape(heads, key_dim, value_dim).clone()
        tail, taken = states.tails[name][walk.slot], dict(walk.snapshots)
        entries = [*tail[: walk.replay], *kept[walk.firm]]
        for number, entry in enumerate(entries, 1):
            state = advance(state, entry)
            if number > walk.replay:
                row = walk.firm.start + number - walk.replay - 1
                out[row] = (state * query[row][..., None]).sum(1)
            if number in taken:
                states.snapshots[name][taken[number]] = state.flatten()
        states.slots[name][walk.slot] = state.flatten()
        for row in walk.drafts:
            after = state
            for ancestor in _path(step, walk, row):
                after = advance(after, kept[ancestor])
            out[row] = (after * query[row][..., None]).sum(1)
        tail[: len(walk.drafts)] = kept[list(walk.drafts)]
    return out.flatten(1)


def _unit(x: torch.Tensor, key_heads: int, heads: int) -> torch.Tensor:
    """[T, heads, key_dim]: each key head's share of the row made unit, for each of its value heads."""
    by_head = x.reshape(len(x), key_heads, -1)
    unit = by_head * torch.rsqrt(by_head.pow(2).sum(-1, keepdim=True) + EPSILON)
    return unit.repeat_interleave(heads // key_heads, dim=1)


def _path(step: Step, walk: Walk, row: int) -> list[int]:
    """The draft's ancestors among the drafts and itself, eldest first."""
    parents, path = step.fields["parent"].tolist(), []
    while row >= walk.drafts.start:
        path.append(row)
        row = parents[row] if parents[row] >= 0 else row - 1
    return path[::-1]


def _attr(op: Op, name: str) -> Any:
    return op.attrs[name]


OPERATORS: dict[str, Function] = {function.__name__: function for function in (conv_state, delta_gates, delta_rule)}
