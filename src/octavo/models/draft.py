"""The module of a checkpoint that predicts a token further: the programs around the decoder layer of its family.

    mtp.rows   the residual stream of the target's last layer -> its final norm h [T, D]
    mtp        x = layer(fc(norm(embedding of token i + 1) | norm(h of token i))); y = norm(x) [T, D]; logits [R, V]

The second is fed with h, and for drafts with y of its own run before, which stands for the h that the target has not
computed yet (program/feeds.py: rows of h, then rows of y). What row i leaves in the layer's cache stands at index i.
Sources: arXiv 2412.19437; the order "embedding first" and the normed h are those of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.program.builder import Builder
from octavo.program.ir import DType, Op, Program, Weight
from octavo.program.rules import number

ROWS, MODULE = "mtp.rows", "mtp"
HIDDEN, STATE, LOGITS = "mtp.h", "mtp.y", "mtp.logits"
Named = tuple[str, str]  # a weight's name in a folder and in GGUF


@dataclass(frozen=True, slots=True)
class Ends:
    """What the module shares with the target: the residual stream [T, D] behind its last layer, the norm behind that
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
    [D, 2 D]. layer: f32 [T, D] of f32 [T, D]."""

    eps: float
    order: str
    embedding_norm: Named
    hidden_norm: Named
    fc: Named
    norm: Named
    layer: Callable[[Builder, str], str]

    def programs(self, ends: Ends) -> Mapping[str, Program]:
        return {ROWS: self._rows(ends), MODULE: self._module(ends)}

    @staticmethod
    def _rows(ends: Ends) -> Program:
        b, norm = Builder(ROWS), ends.norm
        x = b.feed(ends.residual, ends.embedding.shape[1])
        weight, *bias = (_declared(b, each) for each in ends.norm_weights)
        rule, order = str(norm.attrs["rule"]), str(norm.attrs["order"])
        b.norm(HIDDEN, x, weight, eps=number(norm, "eps"), rule=rule, order=order, bias=bias[0] if bias else None)
        b.export(HIDDEN)
        return b.build()

    def _module(self, ends: Ends) -> Program:
        b, d = Builder(MODULE), ends.embedding.shape[1]
        embedding, output = _declared(b, ends.embedding), _declared(b, ends.output)

        def norm(out: str, x: str, named: Named, dtype: DType = "f32") -> str:
            weight = b.weight(f"mtp.w{named[0]}", (d,), hf=named[0], gguf=named[1])
            return b.norm(out, x, weight, eps=self.eps, order=self.order, dtype=dtype)

        h = b.feed(HIDDEN, d, of=ROWS, then=((STATE, MODULE),))
        e = norm("mtp.en", b.embed("mtp.e", "token", embedding, scale=ends.scale), self.embedding_norm)
        joined = b.concat("mtp.eh", e, norm("mtp.hn", h, self.hidden_norm))
        fc = b.weight("mtp.fc", (d, 2 * d), hf=self.fc[0], gguf=self.fc[1])
        x = self.layer(b, b.linear("mtp.x", joined, fc))
        norm(STATE, x, self.norm)
        b.export(STATE)
        b.linear(LOGITS, norm("mtp.final", b.take("mtp.last", x, "logit_row"), self.norm, "act"), output)
        b.export(LOGITS)
        return b.build()


def _declared(b: Builder, weight: Weight) -> str:
    b.weights[weight.name] = weight
    return weight.name
