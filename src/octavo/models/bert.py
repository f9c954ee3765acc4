"""The BERT family: encoders, whose tokens see their whole text, with learned positions and norms behind every branch.

Texts are single ones: every token has type 0. The result is one vector a request (docs/program.md, pool).
Sources: arXiv 1810.04805 (BERT), 1908.10084 (pooled sentence vectors).

Legend: T tokens, N requests, D hidden, F intermediate, V vocabulary, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.model_config import ModelConfig
from octavo.models import layer as parts
from octavo.program.builder import Builder
from octavo.program.ir import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs. act: where the file does not say."""

    act: str = "gelu"


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "hidden" f32 [T, D]: the states of the last layer."""
    b = Builder(config.architecture)
    v, d, root = config.vocab_size, config.hidden_size, "bert.embeddings"
    words = b.weight("embed", (v, d), hf=f"{root}.word_embeddings.weight", gguf="token_embd.weight")
    places = b.weight(
        "positions",
        (config.max_position, d),
        hf=f"{root}.position_embeddings.weight",
        gguf="position_embd.weight",
    )
    kind = b.weight(
        "type",
        (1, d),
        hf=f"{root}.token_type_embeddings.weight",
        gguf="token_types.weight",
        prep=(("rows", 0, 1, 1),),
        plain=True,
    )
    x = b.add("sum", b.embed("tokens", "token", words, addend=kind), b.embed("places", "position", places))
    x = _norm(b, config, "0.x", x, "embed_norm", f"{root}.LayerNorm", "token_embd_norm")
    for layer in range(config.num_layers):
        x = _block(b, config, switches, layer, x)
    b.export(x)
    return b.build()


def _block(b: Builder, config: ModelConfig, switches: Switches, layer: int, x: str) -> str:
    """norm(x + attention(x)), then norm(x + mlp(x))."""
    d, f = config.hidden_size, config.intermediate_size
    hf, gguf = f"bert.encoder.layer.{layer}", f"blk.{layer}"
    spec = parts.Attention(
        hidden=d,
        heads=config.num_heads,
        kv_heads=config.num_heads,
        width=config.head_dim,
        scale=config.head_dim**-0.5,
        causal=False,
    )
    q, k, v = (
        _linear(b, f"{layer}.{short}", x, (d, d), f"{hf}.attention.self.{name}", f"{gguf}.attn_{short}")
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"))
    )
    a = parts.attend(b, spec, layer, q, k, v)
    o = _linear(b, f"{layer}.o", a, (d, d), f"{hf}.attention.output.dense", f"{gguf}.attn_output")
    sources = f"{hf}.attention.output.LayerNorm", f"{gguf}.attn_output_norm"
    x = _norm(b, config, f"{layer}.h", b.add(f"{layer}.x1", x, o), f"{layer}.attn_norm", *sources)
    up = _linear(b, f"{layer}.up", x, (f, d), f"{hf}.intermediate.dense", f"{gguf}.ffn_up")
    g = b.act(f"{layer}.f", up, act=config.activation or switches.act)
    down = _linear(b, f"{layer}.d", g, (d, f), f"{hf}.output.dense", f"{gguf}.ffn_down")
    sources = f"{hf}.output.LayerNorm", f"{gguf}.layer_output_norm"
    out = "hidden" if layer + 1 == config.num_layers else f"{layer + 1}.x"
    return _norm(b, config, out, b.add(f"{layer}.x2", x, down), f"{layer}.ffn_norm", *sources)


def _norm(b: Builder, config: ModelConfig, out: str, x: str, name: str, hf: str, gguf: str) -> str:
    """Layer norm, f32: both the next branch and the next sum read it."""
    d = (config.hidden_size,)
    weight = b.weight(name, d, hf=f"{hf}.weight", gguf=f"{gguf}.weight")
    bias = b.weight(f"{name}.bias", d, hf=f"{hf}.bias", gguf=f"{gguf}.bias")
    return b.norm(out, x, weight, eps=config.rms_eps, rule="layer", bias=bias)


def _linear(b: Builder, out: str, x: str, shape: tuple[int, int], hf: str, gguf: str) -> str:
    """f32 [T, m]."""
    matrix = b.weight(f"{out}.w", shape, hf=f"{hf}.weight", gguf=f"{gguf}.weight")
    bias = b.weight(f"{out}.b", shape[:1], hf=f"{hf}.bias", gguf=f"{gguf}.bias")
    return b.linear(out, x, matrix, bias)
