"""Attention over latents: one row of dims a token is the key of every head, and its first dims are the values.

What model files call, with the rules about these operators. Legend: T tokens, H heads, k keys chosen by an index.
Caches of this file hold one row a token, without heads; stored as i8 a row has one scale for every `group` of its dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from octavo.errors import ConfigError, EngineError
from octavo.program.builder import Builder, fixed_width
from octavo.program.ir import Op, Program, T
from octavo.program.rules import Numbers, Rule, elements, entry_bytes, integer, number, stored_bytes
from octavo.types import StepShape

MOST_OF_A_GROUP = 64  # dims under one scale


def head_linear(b: Builder, out: str, x: str, weight: str, *, heads: int) -> str:
    """f32 [*, H m]: head h of x [*, H n] times the h-th matrix of W [H m, n]."""
    rows, n = b.weights[weight].shape
    if fixed_width(b.at(x)) != heads * n or rows % heads:
        raise ConfigError(f"{out}: {heads} heads of {fixed_width(b.at(x))} do not fit {heads} matrices of {rows} x {n}")
    b.op("head_linear", (out,), (x,), ((b.at(x).shape[0], rows),), (weight,), heads=heads)
    return out


def latent_write(b: Builder, out: str, parts: tuple[str, ...], cache: str) -> str:
    """Writes the parts [T, *], side by side, as one row a token. Returns the token that the readers take."""
    widths = [fixed_width(b.at(part)) for part in parts]
    if sum(widths) != fixed_width(b.at(cache)):
        raise ConfigError(f"{out}: {widths} do not fill {cache}")
    group = gcd(*widths, MOST_OF_A_GROUP)
    b.op("latent_write", (out,), parts, ((),), (), ("token",), cache=cache, group=group)
    return out


def latent_attention(
    b: Builder,
    out: str,
    q: tuple[str, str],
    token: str,
    *,
    cache: str,
    heads: int,
    scale: float,
    chosen: str | None = None,
) -> str:
    """act [T, H v]: causal attention of every head over the rows of the cache, whose first v dims are the values.

    q: the query of each head in two parts, [T, H v] and [T, H r]; a row of the cache has v + r dims.
    chosen: i32 [T, k] places of the keys that each row may see (index_topk); None: all as far as its own.
    """
    first, last = (fixed_width(b.at(part)) for part in q)
    if first % heads or last % heads or (first + last) // heads != fixed_width(b.at(cache)):
        raise ConfigError(f"{out}: {heads} heads of {first} + {last} do not fit {cache}")
    ins = (*q, token) if chosen is None else (*q, token, chosen)
    top_k = 0 if chosen is None else fixed_width(b.at(chosen))
    b.op(
        "latent_attention", (out,), ins, ((T, first),), (), ("act",), cache=cache, heads=heads, scale=scale, top_k=top_k
    )
    return out


def index_topk(
    b: Builder, out: str, q: str, weights: str, token: str, *, cache: str, heads: int, top_k: int, scale: float
) -> str:
    """i32 [T, k]: the places of the k keys of a row with the largest sum of weights * max(scale q k, 0) over the heads.

    Ascending, ties to the lower place, -1 behind the last where a row sees fewer than k.
    q: [T, H d]. weights: [T, H].
    """
    width, d = fixed_width(b.at(q)), fixed_width(b.at(cache))
    if width != heads * d or fixed_width(b.at(weights)) != heads:
        raise ConfigError(f"{out}: {heads} heads of {width} do not fit keys of {d}")
    b.op(
        "index_topk",
        (out,),
        (q, weights, token),
        ((T, top_k),),
        (),
        ("i32",),
        cache=cache,
        heads=heads,
        top_k=top_k,
        scale=scale,
    )
    return out


def seen(shape: StepShape, most: int = 0) -> tuple[int, int]:
    """(keys that the rows see, summed over rows; rows of the cache that are read, each once a request)."""
    pairs = read = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        last = context + rows
        whole = range(context + 1, last + 1)
        pairs += sum(min(keys, most) for keys in whole) if most else sum(whole)
        read += min(last, rows * most) if most else last
    return pairs, read


def _head_linear(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    m = program.weights[op.weights[0]].shape[0] // integer(op, "heads")
    flops = 2 * m * elements(program, op.ins[0], shape, hidden)
    return flops, sum(stored_bytes(program.weights[name]) for name in op.weights), 0


def _latent_write(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    return 0, 0, shape.tokens * entry_bytes(program, op)


def _latent_attention(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """2 for the score and 2 for the value of each dim, head and key: the rotated dims are in the score alone."""
    pairs, read = seen(shape, integer(op, "top_k"))
    tokens = max(shape.tokens, 1)
    first, last = (elements(program, name, shape, hidden) // tokens for name in op.ins[:2])
    return 2 * (2 * first + last) * pairs, 0, read * entry_bytes(program, op)


def _index_topk(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """Every key is scored, whatever is chosen; rows that see no more than k are chosen without."""
    pairs = read = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        scored = [keys for keys in range(context + 1, context + rows + 1) if keys > integer(op, "top_k")]
        pairs, read = pairs + sum(scored), read + max(scored, default=0)
    width = elements(program, op.ins[0], shape, hidden) // max(shape.tokens, 1)
    return 2 * width * pairs, 0, read * entry_bytes(program, op)


def _heads(op: Op) -> tuple[list[int], list[float]]:
    return [integer(op, "heads")], []


def _attention_numbers(op: Op) -> tuple[list[int], list[float]]:
    return [integer(op, "heads"), integer(op, "top_k")], [number(op, "scale")]


COSTS: Mapping[str, Rule] = {
    "head_linear": _head_linear,
    "latent_write": _latent_write,
    "latent_attention": _latent_attention,
    "index_topk": _index_topk,
}
NUMBERS: Mapping[str, Numbers] = {
    "head_linear": _heads,
    **dict.fromkeys(("latent_attention", "fused.latent_attention", "index_topk"), _attention_numbers),
}
ROW_OPS = ("latent_write",)


def group_of(op: Op) -> int:
    """Dims under one scale of the cache that a latent_write fills."""
    if op.kind != "latent_write":
        raise EngineError(f"{op.outs[0]}: {op.kind} writes no latents")
    return integer(op, "group")
