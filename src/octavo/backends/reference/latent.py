"""The meaning of the operators of program/latent.py, in torch. Legend: T tokens, H heads, S keys, d dims of a key.

A row's keys stand in an order: as stored, or for a draft of a tree along its path; a place counts in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from octavo.backends.reference.step import Pages, Step
from octavo.program.ir import Op
from octavo.program.rules import integer, number

Values = Sequence[torch.Tensor]
Result = torch.Tensor | tuple[torch.Tensor, ...] | None
Function = Callable[[Op, Values, Values, Step, Pages], Result]


def head_linear(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    heads = integer(op, "heads")
    matrices = weights[0].reshape(heads, -1, weights[0].shape[1])
    return torch.einsum("thn,hmn->thm", ins[0].reshape(len(ins[0]), heads, -1), matrices).flatten(1)


def latent_write(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    rows, cache = step.written(), str(op.attrs["cache"])
    slot = step.fields["slot"][step.fields["request"][rows]]
    pages.write(cache, pages.place(cache, slot, step.fields["index"][rows]), torch.cat(tuple(ins), dim=-1)[rows])
    return None


def latent_attention(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """softmax(scale q k^T) v, where v is the first dims of k."""
    heads = integer(op, "heads")
    first, last = (part.reshape(len(part), heads, -1) for part in ins[:2])
    q, values = torch.cat((first, last), dim=-1), first.shape[-1]
    out = torch.empty_like(first)
    for rows, keys, visible in _sights(op, step, pages):
        if len(ins) > 2:
            chosen = torch.zeros((len(visible), visible.shape[1] + 1), dtype=torch.bool)
            places = ins[2][rows].reshape(len(visible), -1)
            chosen.scatter_(1, torch.where(places < 0, visible.shape[1], places), True)
            visible = visible & chosen[:, :-1]
        scores = torch.einsum("thd,sd->ths", q[rows].reshape(-1, *q.shape[1:]), keys) * number(op, "scale")
        mixed = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1) @ keys[:, :values]
        out[rows] = mixed.reshape(out[rows].shape)
    return out.flatten(1)


def index_topk(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    heads, k = integer(op, "heads"), integer(op, "top_k")
    q = ins[0].reshape(len(ins[0]), heads, -1)
    out = torch.full((len(q), k), -1, dtype=torch.int64)
    for rows, keys, visible in _sights(op, step, pages):
        products = torch.einsum("thd,sd->ths", q[rows].reshape(-1, *q.shape[1:]), keys) * number(op, "scale")
        scores = (products.relu() * ins[1][rows].reshape(-1, heads, 1)).sum(1)
        ranked = scores.masked_fill(~visible, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :k]
        places = torch.where(visible.gather(1, ranked), ranked, keys.shape[0]).sort(dim=1).values
        found = torch.full((len(places), k), -1, dtype=torch.int64)
        found[:, : places.shape[1]] = torch.where(places < keys.shape[0], places, -1)
        out[rows] = found.reshape(out[rows].shape)
    return out


def _sights(op: Op, step: Step, pages: Pages) -> Iterator[tuple[slice | int, torch.Tensor, torch.Tensor]]:
    """(rows of a request, the keys [S, d] that they see together, who sees which [rows, S]); drafts of a tree after
    that one by one. Only what some row sees is read, so that stale entries enter no product."""
    cache, index, slots = str(op.attrs["cache"]), step.fields["index"], step.fields["slot"]
    for rows, slot in zip(step.rows, slots, strict=True):
        order = torch.arange(int(index[rows].max()) + 1)
        yield rows, pages.read(cache, pages.place(cache, slot, order)), order <= index[rows][:, None]
    if step.drafted:
        for row in torch.nonzero(step.fields["parent"] >= 0).flatten().tolist():
            order, slot = torch.tensor(step.path(row)), slots[step.fields["request"][row]]
            keys = pages.read(cache, pages.place(cache, slot, order))
            yield row, keys, torch.ones((1, len(order)), dtype=torch.bool)


OPERATORS: dict[str, Function] = {
    function.__name__: function for function in (head_linear, latent_write, latent_attention, index_topk)
}
