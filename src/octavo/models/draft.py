"""The module of a checkpoint that predicts a token further: the programs around the decoder layer of its family.

    mtp.rows   the residual stream of the target's last layer -> its final norm h [T, D]
    mtp        x = layer(fc(norm(embedding of token i + 1) | norm(h of token i))); y = norm(x) [T, D]; logits [R, V]

The second is fed with h, and for drafts with y of its own run before, which stands for the h that the target has not
computed yet (program/feeds.py: rows of h, then rows of y). What row i leaves in the layer's cache stands at index i.
Embedding, final norm and head are the target's. Sources: arXiv 2412.19437; the order "embedding first" and the normed h
are those of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.model_config import ModelConfig
from octavo.program.builder import Builder
from octavo.program.ir import DType, Program

ROWS, MODULE = "mtp.rows", "mtp"
HIDDEN, STATE, LOGITS = "mtp.h", "mtp.y", "mtp.logits"
Named = tuple[str, str]  # a weight's name in a folder and in GGUF


@dataclass(frozen=True, slots=True)
class Module:
    """What is written around a layer. order: of norms (Builder.norm). embedding_norm, hidden_norm, norm: [D]; fc:
    [D, 2 D]. layer: f32 [T, D] of f32 [T, D]."""

    order: str
    embedding_norm: Named
    hidden_norm: Named
    fc: Named
    norm: Named
    layer: Callable[[Builder, str], str]

    def programs(self, config: ModelConfig) -> Mapping[str, Program]:
        return {ROWS: self._rows(config), MODULE: self._module(config)}

    def _rows(self, config: ModelConfig) -> Program:
        b = Builder(ROWS)
        final = b.weight("norm", (config.hidden_size,), hf="model.norm.weight", gguf="output_norm.weight")
        x = b.feed(f"{config.num_layers}.x", config.hidden_size)
        b.norm(HIDDEN, x, final, eps=config.rms_eps, order=self.order)
        b.export(HIDDEN)
        return b.build()

    def _module(self, config: ModelConfig) -> Program:
        b, v, d = Builder(MODULE), config.vocab_size, config.hidden_size
        embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
        head = embedding
        if not config.tie_embeddings:
            head = b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")

        def norm(out: str, x: str, named: Named, dtype: DType = "f32") -> str:
            weight = b.weight(f"mtp.w{named[0]}", (d,), hf=named[0], gguf=named[1])
            return b.norm(out, x, weight, eps=config.rms_eps, order=self.order, dtype=dtype)

        h = b.feed(HIDDEN, d, of=ROWS, then=((STATE, MODULE),))
        e = norm("mtp.en", b.embed("mtp.e", "token", embedding), self.embedding_norm)
        joined = b.concat("mtp.eh", e, norm("mtp.hn", h, self.hidden_norm))
        fc = b.weight("mtp.fc", (d, 2 * d), hf=self.fc[0], gguf=self.fc[1])
        x = self.layer(b, b.linear("mtp.x", joined, fc))
        norm(STATE, x, self.norm)
        b.export(STATE)
        b.linear(LOGITS, norm("mtp.final", b.take("mtp.last", x, "logit_row"), self.norm, "act"), head)
        b.export(LOGITS)
        return b.build()
