"""The programs of an EAGLE head: one decoder layer over the target's features and the next token's embedding.

    eagle.fuse   features of the target, row by row -> g [T, D]
                 EAGLE-3: fc(low | mid | high), states of the residual stream; EAGLE-1 and 2: the final norm
    eagle        g or x of the row before, and the embedding of the token after it -> x [T, D], logits [R, Vd]

The second is fed from the first, for tokens that the target has computed, and from its own run before, for drafts that
stand behind those (program/feeds.py: rows of g, then rows of x). Row i of its cache holds the feature of token i beside
the embedding of token i + 1, at position i. Sources: arXiv 2401.15077, 2406.16858, 2503.01840.

    EAGLE-1, 2   h = fc(e | f); x = h + attention(h); x = x + mlp(norm(x)); logits = the target's head of x
    EAGLE-3      h = norm(e) | norm(g); x = g + attention(h); x = x + mlp(norm(x)); logits = head of norm(x)

Legend: T tokens, R logit rows, D the head's hidden size, V vocabulary of the target, Vd of the drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.model_config import ModelConfig
from octavo.program.builder import Builder
from octavo.program.ir import Op, Program, Weight
from octavo.program.rules import number
from octavo.types import KVGroup

FUSE, HEAD = "eagle.fuse", "eagle"
FUSED, STATE, LOGITS = "eagle.g", "eagle.x", "eagle.logits"
OWN = "draft."  # names of weights that stand in the head's files begin so


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape:
    """config: of the head, as a Llama states it. taps: values of the target, of `width` each. layer: how its files call
    the decoder layer. embedding: of the target, with what its rows are multiplied by, where the head has none.

    norm, norm_weights: of the target, behind its last layer, and output: its head [V, D], where `three` is False.
    draft_vocab: rows of the head's own. fc_bias: whether fc has one.
    """

    config: ModelConfig
    three: bool
    taps: tuple[str, ...]
    width: int
    layer: str
    draft_vocab: int
    inv_freq: tuple[float, ...]
    factor: float
    embedding: tuple[Weight, float] | None
    norm: Op | None = None
    norm_weights: tuple[Weight, ...] = ()
    output: Weight | None = None
    fc_bias: bool = False


def programs(shape: EagleShape) -> Mapping[str, Program]:
    return {FUSE: _fuse(shape), HEAD: _head(shape)}


def _fuse(shape: EagleShape) -> Program:
    b = Builder(FUSE)
    fed = {tap: b.feed(tap, shape.width) for tap in dict.fromkeys(shape.taps)}
    x = fed[shape.taps[0]]
    for count, tap in enumerate(shape.taps[1:], 2):
        x = b.concat(f"eagle.taps{count}", x, fed[tap])
    if shape.three:
        b.linear(FUSED, x, _own(b, "fc", shape.config.hidden_size, shape.width * len(shape.taps)))
    elif shape.norm is not None:
        names = [_same(b, weight) for weight in shape.norm_weights]
        rule, order = (str(shape.norm.attrs[name]) for name in ("rule", "order"))
        bias = names[1] if len(names) > 1 else None
        b.norm(FUSED, x, names[0], eps=number(shape.norm, "eps"), rule=rule, order=order, bias=bias)
    b.export(FUSED)
    return b.build()


def _head(shape: EagleShape) -> Program:
    config = shape.config
    width, eps = config.hidden_size, config.rms_eps
    b = Builder(HEAD)
    g = b.feed(FUSED, width, of=FUSE, then=((STATE, HEAD),))
    if shape.embedding is not None:
        weight, scale = shape.embedding
        e = b.embed("eagle.e", "token", _same(b, weight), scale=scale)
    else:
        e = b.embed("eagle.e", "token", _own(b, "embed_tokens", config.vocab_size, width))
    if shape.three:
        x, first = g, _norm(b, shape, "eagle.en", e, "input_layernorm")
        h = b.concat("eagle.h", first, _norm(b, shape, "eagle.gn", g, "hidden_norm"))
    else:
        bias = _vector(b, "fc.bias", width) if shape.fc_bias else None
        x = h = b.linear("eagle.h", b.concat("eagle.eg", e, g), _own(b, "fc", width, 2 * width), bias)
    x = b.add("eagle.x1", x, _attention(b, shape, h))
    x = b.add(STATE, x, _mlp(b, shape, _norm(b, shape, "eagle.h2", x, "post_attention_layernorm")))
    b.export(STATE)
    last = b.take("eagle.last", x, "logit_row")
    if shape.output is not None:
        b.linear(LOGITS, last, _same(b, shape.output))
    else:
        last = b.norm("eagle.final", last, _vector(b, "norm.weight", width), eps=eps, dtype="act")
        b.linear(LOGITS, last, _own(b, "lm_head", shape.draft_vocab, width))
    b.export(LOGITS)
    return b.build()


def _attention(b: Builder, shape: EagleShape, h: str) -> str:
    """f32 [T, D] of h [T, 2 D] or [T, D]."""
    config = shape.config
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    eaten = config.hidden_size * (2 if shape.three else 1)

    def projected(name: str, count: int) -> str:
        weight = _own(b, f"{shape.layer}.self_attn.{name}_proj", count * size, eaten)
        bias = None
        if config.attention_bias:
            bias = _vector(b, f"{shape.layer}.self_attn.{name}_proj.bias", count * size)
        return b.linear(f"eagle.{name}", h, weight, bias)

    angles = b.rope_angles("eagle.angles", "position", inv_freq=shape.inv_freq, factor=shape.factor)
    rotary = 2 * len(shape.inv_freq)
    q, k, v = projected("q", heads), projected("k", kv_heads), projected("v", kv_heads)
    q = b.rope("eagle.qr", q, angles, heads=heads, rotary=rotary)
    k = b.rope("eagle.kr", k, angles, heads=kv_heads, rotary=rotary)
    group = b.group(KVGroup("full", "full"))
    cache_k, cache_v = (b.cache(group, f"eagle.{name}_cache", kv_heads * size) for name in "kv")
    kv = b.kv_write("eagle.kv", k, v, cache_k, cache_v, kv_heads=kv_heads)
    a = b.attention(
        "eagle.a",
        q,
        kv,
        cache_k=cache_k,
        cache_v=cache_v,
        heads=heads,
        kv_heads=kv_heads,
        scale=size**-0.5,
    )
    return b.linear("eagle.o", a, _own(b, f"{shape.layer}.self_attn.o_proj", config.hidden_size, heads * size))


def _mlp(b: Builder, shape: EagleShape, h: str) -> str:
    config = shape.config
    inner, width = config.intermediate_size, config.hidden_size
    gate, up = (
        b.linear(f"eagle.{name}", h, _own(b, f"{shape.layer}.mlp.{name}_proj", inner, width)) for name in ("gate", "up")
    )
    f = b.glu("eagle.f", gate, up, act=config.activation or "silu")
    return b.linear("eagle.down", f, _own(b, f"{shape.layer}.mlp.down_proj", width, inner))


def _norm(b: Builder, shape: EagleShape, out: str, x: str, name: str) -> str:
    weight = _vector(b, f"{shape.layer}.{name}.weight", shape.config.hidden_size)
    return b.norm(
        out, x, weight, eps=shape.config.rms_eps, dtype="act" if name == "post_attention_layernorm" else "f32"
    )


def _own(b: Builder, name: str, rows: int, columns: int) -> str:
    return b.weight(f"{OWN}{name}", (rows, columns), hf=f"{name}.weight", gguf=f"{name}.weight")


def _vector(b: Builder, name: str, width: int) -> str:
    return b.weight(f"{OWN}{name}", (width,), hf=name, gguf=name)


def _same(b: Builder, weight: Weight) -> str:
    """A weight of the target's, as it declares it."""
    b.weights[weight.name] = weight
    return weight.name
