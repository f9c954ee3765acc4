"""The meaning of every operator, in torch: one function each, in float32, rounding only where the program says so.

A function gets its operator, its inputs and weights as tensors and the step; it returns what the operator writes.
Legend: T tokens, H query heads, K KV heads, d head size, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from octavo.backends.reference import experts, latent, recurrence
from octavo.backends.reference.step import Pages, Step
from octavo.program.ir import Op

Values = Sequence[torch.Tensor]
Result = torch.Tensor | tuple[torch.Tensor, ...] | None  # many: one for each output that is no token
Function = Callable[[Op, Values, Values, Step, Pages], Result]


def embed(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    rows = weights[0][ins[0]] * _attr(op, "scale")
    return rows + weights[1] if len(weights) > 1 else rows


def take(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return ins[0][ins[1]]


def feed(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """Rows of exports, one under another."""
    return torch.cat(tuple(ins[:-1]))[ins[-1]]


def norm(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """Over the row, or over each head's share of it."""
    x, rule = ins[0], _attr(op, "rule")
    heads = max(_attr(op, "heads"), 1)
    grouped = x.reshape(len(x), heads, x.shape[1] // heads)
    if rule == "layer":
        grouped = grouped - grouped.mean(-1, keepdim=True)
    squares = grouped.pow(2)
    square = squares.sum(-1, keepdim=True) if rule == "l2" else squares.mean(-1, keepdim=True)
    scaled = grouped * torch.rsqrt(square + _attr(op, "eps"))
    if rule != "l2":
        scaled = scaled * (1 + weights[0] if op.attrs["order"] == "gemma" else weights[0])
    return (scaled + weights[1] if len(weights) > 1 else scaled).reshape(x.shape)


def linear(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return functional.linear(ins[0], *weights)


def add(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return ins[0] + ins[1]


def concat(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return torch.cat(tuple(ins), dim=-1)


def glu(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    gate, up = ins
    if op.attrs["act"] == "silu":
        return functional.silu(gate) * up
    if op.attrs["act"] == "clamped":
        alpha, limit = _attr(op, "alpha"), _attr(op, "limit")
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)
    return functional.gelu(gate, approximate="tanh") * up


def act(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    if op.attrs["act"] == "silu":
        return functional.silu(ins[0])
    return functional.gelu(ins[0], approximate="tanh" if op.attrs["act"] == "gelu_tanh" else "none")


def cap(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    return _capped(ins[0], _attr(op, "cap"))


def _capped(x: torch.Tensor, most: float) -> torch.Tensor:
    return torch.tanh(x / most) * most


def pool(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """One row a request."""
    mode = _attr(op, "mode")
    parts = [ins[0][rows] for rows in step.rows]
    if mode == "mean":
        return torch.stack([part.mean(0) for part in parts])
    return torch.stack([part[0 if mode == "cls" else -1] for part in parts])


def quantize(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """Round to nearest even; the value stays in a float32 tensor.

    Integer kinds: v * scale with v = round(x * (most / top)) and scale = top / most, top the largest magnitude of the
    row (i15, i8row, i8x) or of its 32 columns; i8x: top of the magnitudes below 6, if the row's largest then has 15
    bits. i15q: 16383 steps for the quarter of a row's blocks with the largest tops (of each 512 blocks; rounded up,
    ties included), 127 for the others. A top below 1e-30 counts as zero, one that is not finite gives NaN.
    """
    x, kind = ins[0], _attr(op, "kind")
    if kind == "bf16":
        return x.bfloat16().float()
    most = 127.0 if kind in ("i8g32", "i8row") else 16383.0
    blocks = functional.pad(x, (0, -x.shape[1] % 32)).reshape(len(x), -1, 32)
    top = blocks.abs().amax(2 if kind in ("i8g32", "i15g32", "i15q") else (1, 2), keepdim=True)
    into, unit = most / top, top / most
    if kind == "i15q":
        stretches = [top[:, begin : begin + 512] for begin in range(0, top.shape[1], 512)]
        light = top < torch.cat([_least_heavy(tops) for tops in stretches], 1)
        into, unit = torch.where(light, 127 / top, into), torch.where(light, top / 127, unit)
    if kind == "i8x":
        usual = torch.where(blocks.abs() < 6, blocks.abs(), 0.0).amax((1, 2), keepdim=True)
        apart = (usual >= 1e-30) & (usual / 127 >= unit)
        into, unit = torch.where(apart, 127 / usual, into), torch.where(apart, usual / 127, unit)
    values = torch.round(blocks * into) * unit
    values = torch.where(top < 1e-30, 0.0, torch.where(top.isfinite(), values, torch.nan))
    return values.flatten(1)[:, : x.shape[1]]


def _least_heavy(tops: torch.Tensor) -> torch.Tensor:
    """[T, blocks, 1] -> for each block, the least top of the quarter of them with the largest."""
    heavy = tops.topk(-(-tops.shape[1] // 4), 1).values
    return heavy[:, -1:].expand_as(tops)


def rope_angles(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    angles = ins[0].float()[:, None] * torch.tensor(op.attrs["inv_freq"], dtype=torch.float32)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * _attr(op, "factor")


def rope(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """Rotates the pairs (i, i + rotary / 2) of each head."""
    x, half = _heads(ins[0], _attr(op, "heads")), _attr(op, "rotary") // 2
    cos, sin = ins[1][:, None, :half], ins[1][:, None, half:]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).flatten(1)


def kv_write(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    rows = step.written()
    slot = step.fields["slot"][step.fields["request"][rows]]
    place = pages.place(_attr(op, "cache_k"), slot, step.fields["index"][rows])
    for name, values in zip(("cache_k", "cache_v"), ins, strict=True):
        pages.write(_attr(op, name), place, values[rows])
    return None


def attention(op: Op, ins: Values, weights: Values, step: Step, pages: Pages) -> Result:
    """Each row over its own request's cache: keys up to its index, or its path in a tree of drafts."""
    q = _heads(ins[0], _attr(op, "heads"))
    out = torch.empty_like(q)
    index, sinks = step.fields["index"], weights[0] if weights else None
    for rows, slot in zip(step.rows, step.fields["slot"], strict=True):
        out[rows] = _causal(op, q[rows], index[rows], slot, pages, sinks)
    if step.drafted:
        slots = step.fields["slot"][step.fields["request"]]
        for row in torch.nonzero(step.fields["parent"] >= 0).flatten().tolist():
            out[row] = _along(op, q[row], torch.tensor(step.path(row)), slots[row], pages, sinks)
    return out.flatten(1)


def _causal(
    op: Op, q: torch.Tensor, index: torch.Tensor, slot: torch.Tensor, pages: Pages, sinks: torch.Tensor | None
) -> torch.Tensor:
    """[n, H, d]; only keys that some row sees are read, so that stale entries never enter a product."""
    window = _attr(op, "window")
    first = max(0, int(index.min()) - window + 1) if window else 0
    keys = torch.arange(first, int(index.max()) + 1)
    visible = keys <= (index[:, None] if _attr(op, "causal") else index.max())
    if window:
        visible &= keys > index[:, None] - window
    k, v = _read(op, keys, slot, pages)
    return _mix(op, q, k, v, visible, sinks)


def _along(
    op: Op, q: torch.Tensor, keys: torch.Tensor, slot: torch.Tensor, pages: Pages, sinks: torch.Tensor | None
) -> torch.Tensor:
    """[H, d] of one row over an ordered list of keys."""
    if _attr(op, "window"):
        keys = keys[-_attr(op, "window") :]
    k, v = _read(op, keys, slot, pages)
    return _mix(op, q[None], k, v, torch.ones((1, len(keys)), dtype=torch.bool), sinks)[0]


def _read(op: Op, keys: torch.Tensor, slot: torch.Tensor, pages: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v, float32 [K, S, d]."""
    place, kv_heads = pages.place(_attr(op, "cache_k"), slot, keys), _attr(op, "kv_heads")
    k, v = (pages.read(_attr(op, name), place) for name in ("cache_k", "cache_v"))
    return _heads(k, kv_heads).transpose(0, 1), _heads(v, kv_heads).transpose(0, 1)


def _mix(
    op: Op, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """softmax(scale q k^T) v, a sink beside the scores; query heads of one KV head stand together: head h reads KV head
    h K / H."""
    rows, heads, width = q.shape
    grouped = q.transpose(0, 1).reshape(len(k), -1, width)
    scores = (grouped @ k.transpose(1, 2) * _attr(op, "scale")).reshape(len(k), heads // len(k), rows, -1)
    if _attr(op, "cap"):
        scores = _capped(scores, _attr(op, "cap"))
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        beside = sinks.reshape(len(k), -1, 1, 1).expand(-1, -1, rows, 1)
        weights = torch.cat((scores, beside), dim=-1).softmax(-1)[..., :-1]
    return (weights.flatten(1, 2) @ v).reshape(heads, rows, width).transpose(0, 1)


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[T, heads, d]"""
    return x.reshape(len(x), heads, -1)


def _attr(op: Op, name: str) -> Any:
    return op.attrs[name]


OPERATORS: dict[str, Function] = (
    {
        function.__name__: function
        for function in (
            embed,
            feed,
            take,
            norm,
            linear,
            add,
            concat,
            glu,
            act,
            cap,
            pool,
            quantize,
            rope_angles,
            rope,
            kv_write,
            attention,
        )
    }
    | experts.OPERATORS
    | latent.OPERATORS
    | recurrence.OPERATORS
)
