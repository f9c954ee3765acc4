"""The modules of a checkpoint that predict tokens further: the programs around decoder layers of its family.

    mtp.rows   the residual stream of the target's last layer -> its final norm h [T, D]
    mtp.held   rows of h, and of its own last run: of several modules, the rows of h that are needed again
    mtp        x = layer(fc(norm(embedding of token i + 1) | norm(h of token i))); y = norm(x) [T, D]; logits [R, V]
    mtp.1 ...  the next modules: the same with token i + 2 and so on, and y of the module before for h
    mtp.again  a module that chooses keys by an index and shares the choice across drafts: the same without an index

The module is fed with h, and for drafts beyond the last module with y of that, which stands for the h that the target
has not computed yet (program/feeds.py: rows of h, then rows of y). What row i leaves in a layer's cache stands at index
i. Sources: arXiv 2412.19437; the order "embedding first" and the normed h are those of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.program.builder import Builder, fixed_width
from octavo.program.ir import DType, Op, Program, Weight
from octavo.program.rules import number

ROWS, HELD, MODULE, AGAIN = "mtp.rows", "mtp.held", "mtp", "mtp.again"
HIDDEN = "mtp.h"
Named = tuple[str, str]  # a weight's name in a folder and in GGUF


@dataclass(frozen=True, slots=True)
class Ends:
    """What a module shares with the target: the residual stream [T, D] behind its last layer, the norm behind that
    and its weights, the embedding [V, D] with what its rows are multiplied by. output: the head [V, D]; a module that
    was trained apart has its own."""

    residual: str
    norm: Op
    norm_weights: tuple[Weight, ...]
    embedding: Weight
    scale: float
    output: Weight


@dataclass(frozen=True, slots=True)
class Module:
    """What is written around a layer. eps, order: of norms (Builder.norm). embedding_norm, hidden_norm, norm: [D]; fc:
    [D, 2 D]. layer: (f32 [T, D], the keys that were chosen, i32 [T, k], if any) of f32 [T, D] and keys that are to be
    taken instead of an own choice. shares: the keys chosen with the last true token are taken for all drafts behind."""

    eps: float
    order: str
    embedding_norm: Named
    hidden_norm: Named
    fc: Named
    norm: Named
    layer: Callable[[Builder, str, str | None], tuple[str, str | None]]
    shares: bool = False


def named(place: int) -> str:
    """The program of the module at this place."""
    return f"{MODULE}.{place}" if place else MODULE


def state(program: str) -> str:
    return f"{program}.y"


def logits(program: str) -> str:
    return f"{program}.logits"


def programs(modules: Sequence[Module], ends: Ends) -> Mapping[str, Program]:
    """Raises ConfigError for several modules that share keys across drafts."""
    names, d = [named(place) for place in range(len(modules))], ends.embedding.shape[1]
    if len(modules) > 1 and any(module.shares for module in modules):
        what = "index_share_for_mtp_iteration with several layers that draft: not supported"
        raise ConfigError(what, code="unsupported", param="num_nextn_predict_layers")
    found = {ROWS: _rows(ends)}
    first = HIDDEN, ROWS
    if len(modules) > 1:
        found[HELD] = _held(d)
        first = f"{HIDDEN}.fed", HELD
    for place, (name, module) in enumerate(zip(names, modules, strict=True)):
        b, before = Builder(name), names[place - 1]
        fed = (first, (state(before), before)) if place == 0 else ((state(before), before),)
        chosen = _module(b, module, ends, fed, None)
        if module.shares and chosen is not None:
            b.export(chosen)
            found[AGAIN] = _again(module, ends, chosen, fixed_width(b.at(chosen)))
        found[name] = b.build()
    return found


def _rows(ends: Ends) -> Program:
    b, norm = Builder(ROWS), ends.norm
    x = b.feed(ends.residual, ends.embedding.shape[1])
    weight, *bias = (_declared(b, each) for each in ends.norm_weights)
    rule, order = str(norm.attrs["rule"]), str(norm.attrs["order"])
    b.norm(HIDDEN, x, weight, eps=number(norm, "eps"), rule=rule, order=order, bias=bias[0] if bias else None)
    b.export(HIDDEN)
    return b.build()


def _held(width: int) -> Program:
    b = Builder(HELD)
    b.export(b.feed(HIDDEN, width, ROWS, then=((f"{HIDDEN}.fed", HELD),)))
    return b.build()


def _again(module: Module, ends: Ends, chosen: str, most: int) -> Program:
    """chosen: what the module exports its keys as, so many a row."""
    b = Builder(AGAIN)
    keys = b.feed(chosen, most, MODULE, then=((f"{chosen}.fed", AGAIN),), dtype="i32")
    b.export(keys)
    _module(b, module, ends, ((state(MODULE), MODULE), (state(AGAIN), AGAIN)), keys)
    return b.build()


def _module(b: Builder, module: Module, ends: Ends, fed: Sequence[tuple[str, str]], keys: str | None) -> str | None:
    """The keys that are chosen. fed: (export, program) of what stands for h. keys: these are taken."""
    at, d = b.name, ends.embedding.shape[1]
    embedding, output = _declared(b, ends.embedding), _declared(b, ends.output)

    def norm(out: str, x: str, named: Named, dtype: DType = "f32") -> str:
        weight = b.weight(f"mtp.w{named[0]}", (d,), hf=named[0], gguf=named[1])
        return b.norm(out, x, weight, eps=module.eps, order=module.order, dtype=dtype)

    (export, owner), *then = fed
    h = b.feed(export, d, of=owner, then=tuple(then))
    e = norm(f"{at}.en", b.embed(f"{at}.e", "token", embedding, scale=ends.scale), module.embedding_norm)
    joined = b.concat(f"{at}.eh", e, norm(f"{at}.hn", h, module.hidden_norm))
    fc = b.weight(f"mtp.w{module.fc[0]}", (d, 2 * d), hf=module.fc[0], gguf=module.fc[1])
    x, chosen = module.layer(b, b.linear(f"{at}.x", joined, fc), keys)
    norm(state(at), x, module.norm)
    b.export(state(at))
    b.linear(logits(at), norm(f"{at}.final", b.take(f"{at}.last", x, "logit_row"), module.norm, "act"), output)
    b.export(logits(at))
    return chosen


def _declared(b: Builder, weight: Weight) -> str:
    b.weights[weight.name] = weight
    return weight.name
