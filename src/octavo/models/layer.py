"""The parts of a decoder layer that families share: norms, grouped-query attention over a cache, the gated MLP.

Names of weights are those of the generation of checkpoints that all of them follow ("self_attn.q_proj.weight") and of
GGUF ("attn_q.weight"). What a family does differently it says in an Attention, or writes in its own file.

Legend: T tokens, D hidden, F intermediate, H query heads, K KV heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.program.builder import Builder
from octavo.program.ir import DType, Scalar
from octavo.types import KVGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one layer. window: keys that a query sees with itself, 0: all. cap: see Builder.attention.

    qk_norm: RMS norm of q and k before rotation, of each head or over the whole row; eps and order are its own.
    sinks: a logit of each head beside its scores ("self_attn.sinks").
    angles: of rotary / 2 pairs; None: the layer does not rotate. interleaved: the rows of q and k stand in
    interleaved rotary order in the file.
    """

    hidden: int
    heads: int
    kv_heads: int
    width: int
    scale: float
    window: int = 0
    cap: float = 0.0
    causal: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "row"] = "none"
    eps: float = 0.0
    order: str = "llama"
    sinks: bool = False
    angles: str | None = None
    rotary: int = 0
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """RMS norms over rows of D = hidden. order: see Builder.norm."""

    hidden: int
    eps: float
    order: str = "llama"

    def write(self, b: Builder, layer: int, out: str, x: str, *, hf: str, gguf: str, dtype: DType = "f32") -> str:
        """[T, D], `act` where linears eat it. The weight is called after its GGUF name."""
        source = f"model.layers.{layer}.{hf}.weight"
        weight = b.weight(f"{layer}.{gguf}", (self.hidden,), hf=source, gguf=f"blk.{layer}.{gguf}.weight")
        return b.norm(f"{layer}.{out}", x, weight, eps=self.eps, order=self.order, dtype=dtype)


def attention(b: Builder, spec: Attention, layer: int, h: str) -> str:
    """f32 [T, D]: o(attention(rope(q), rope(k), v)), all from h [T, D]."""
    hidden, heads, kv_heads = spec.hidden, spec.heads, spec.kv_heads
    q = _project(b, spec, layer, "q", h, heads)
    k = _project(b, spec, layer, "k", h, kv_heads)
    v = _project(b, spec, layer, "v", h, kv_heads)
    if spec.qk_norm != "none":
        q = _qk_norm(b, spec, layer, "q", q, heads)
        k = _qk_norm(b, spec, layer, "k", k, kv_heads)
    if spec.angles is not None:
        q = b.rope(f"{layer}.qr", q, spec.angles, heads=heads, rotary=spec.rotary)
        k = b.rope(f"{layer}.kr", k, spec.angles, heads=kv_heads, rotary=spec.rotary)
    a = attend(b, spec, layer, q, k, v)
    names = f"model.layers.{layer}.self_attn.o_proj", f"blk.{layer}.attn_output"
    wo = b.weight(f"{layer}.wo", (hidden, heads * spec.width), hf=f"{names[0]}.weight", gguf=f"{names[1]}.weight")
    bias = None
    if spec.o_bias:
        bias = b.weight(f"{layer}.bo", (hidden,), hf=f"{names[0]}.bias", gguf=f"{names[1]}.bias")
    return b.linear(f"{layer}.o", a, wo, bias)


def attend(b: Builder, spec: Attention, layer: int, q: str, k: str, v: str) -> str:
    """act [T, H d]: k and v go into the layer's cache, and each row of q over what stands there."""
    window = spec.window
    group = b.group(KVGroup(f"window.{window}", "window", window) if window else KVGroup("full", "full"))
    cache_k = b.cache(group, f"{layer}.k_cache", spec.kv_heads * spec.width)
    cache_v = b.cache(group, f"{layer}.v_cache", spec.kv_heads * spec.width)
    kv = b.kv_write(f"{layer}.kv", k, v, cache_k, cache_v, kv_heads=spec.kv_heads)
    sinks = None
    if spec.sinks:
        hf, gguf = f"model.layers.{layer}.self_attn.sinks", f"blk.{layer}.attn_sinks.weight"
        sinks = b.weight(f"{layer}.sinks", (spec.heads,), hf=hf, gguf=gguf)
    return b.attention(
        f"{layer}.a",
        q,
        kv,
        cache_k=cache_k,
        cache_v=cache_v,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        scale=spec.scale,
        window=window,
        cap=spec.cap,
        sinks=sinks,
        causal=spec.causal,
    )


def mlp(b: Builder, layer: int, h: str, *, hidden: int, width: int, act: str, bias: bool = False) -> str:
    """f32 [T, D]: down(act(gate(h)) * up(h)); D = hidden, F = width."""
    shape = (width, hidden)

    def linear(out: str, name: str, x: str) -> str:
        hf, gguf = f"model.layers.{layer}.mlp.{name}_proj", f"blk.{layer}.ffn_{name}"
        size = shape if name != "down" else shape[::-1]
        matrix = b.weight(f"{layer}.w{name}", size, hf=f"{hf}.weight", gguf=f"{gguf}.weight")
        vector = b.weight(f"{layer}.b{name}", size[:1], hf=f"{hf}.bias", gguf=f"{gguf}.bias") if bias else None
        return b.linear(f"{layer}.{out}", x, matrix, vector)

    f = b.glu(f"{layer}.f", linear("gate", "gate", h), linear("up", "up", h), act=act)
    return linear("d", "down", f)


def _project(b: Builder, spec: Attention, layer: int, name: str, h: str, heads: int) -> str:
    """One of q, k, v: f32 [T, heads d]."""
    prep: tuple[tuple[Scalar, ...], ...] = (("unpermute_rope", heads),) if spec.interleaved and name != "v" else ()
    hf, gguf = f"model.layers.{layer}.self_attn.{name}_proj", f"blk.{layer}.attn_{name}"
    width = heads * spec.width
    matrix = b.weight(f"{layer}.w{name}", (width, spec.hidden), hf=f"{hf}.weight", gguf=f"{gguf}.weight", prep=prep)
    bias = None
    if spec.qkv_bias:
        bias = b.weight(f"{layer}.b{name}", (width,), hf=f"{hf}.bias", gguf=f"{gguf}.bias", prep=prep)
    return b.linear(f"{layer}.{name}", h, matrix, bias)


def _qk_norm(b: Builder, spec: Attention, layer: int, name: str, x: str, heads: int) -> str:
    by_head = spec.qk_norm == "head"
    prep: tuple[tuple[Scalar, ...], ...] = (("unpermute_rope", heads),) if spec.interleaved and not by_head else ()
    weight = b.weight(
        f"{layer}.{name}_norm",
        (spec.width if by_head else heads * spec.width,),
        hf=f"model.layers.{layer}.self_attn.{name}_norm.weight",
        gguf=f"blk.{layer}.attn_{name}_norm.weight",
        prep=prep,
    )
    return b.norm(f"{layer}.{name}n", x, weight, eps=spec.eps, order=spec.order, heads=heads if by_head else 0)
