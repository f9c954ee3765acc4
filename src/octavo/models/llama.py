"""The Llama family: pre-norm blocks of grouped-query attention and a gated MLP, with rotary positions.

Writes the plain program of a configuration and names every weight in both file formats. Members differ in the
switches below and in nothing else. Sources: arXiv 2302.13971 (Llama), 2412.15115 and 2505.09388 (Qwen), SmolLM3's card.

Legend: D hidden, F intermediate, V vocabulary, H query heads, K KV heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.model_config import ModelConfig
from octavo.models.rope import frequencies
from octavo.program.builder import Builder
from octavo.program.ir import Program, Scalar
from octavo.types import KVGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs. None: what the checkpoint states, else off.

    qkv_bias, o_bias: vectors on the projections. qk_norm: RMS norm of each head of q and k before rotation.
    tied: the head is the embedding where the file does not say. theta: rotary base where the file does not say.
    no_rope_interval n: every n-th layer does not rotate. window: where the file does not say, in every layer.
    gguf_interleaved: GGUF files of this member hold q and k rows in interleaved rotary order.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: bool = False
    tied: bool = False
    theta: float = 10_000.0
    no_rope_interval: int = 0
    window: int = 0
    gguf_interleaved: bool = False


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    b = Builder(config.architecture)
    v, d = config.vocab_size, config.hidden_size
    tied = switches.tied if config.tie_embeddings is None else config.tie_embeddings
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if tied else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    inv_freq, factor = frequencies(config.rope, config.head_dim, config.max_position, switches.theta, max_model_len)
    x = b.embed("0.x", "token", embedding)
    angles = b.rope_angles("angles", "position", inv_freq=inv_freq, factor=factor)
    for layer in range(config.num_layers):
        x = _attention(b, config, switches, layer, x, angles)
        x = _mlp(b, config, layer, x)
    rows = b.take("last", x, "logit_row")
    b.linear("logits", b.norm("final", rows, final, eps=config.rms_eps, dtype="act"), head)
    b.export("logits")
    return b.build()


def _attention(b: Builder, config: ModelConfig, switches: Switches, layer: int, x: str, angles: str) -> str:
    """x + o(attention(rope(q), rope(k), v)), all from norm(x)."""
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    h = _norm(b, config, f"{layer}.h", x, f"{layer}.attn_norm", "input_layernorm", "attn_norm", layer)
    biased = bool(config.attention_bias) if switches.qkv_bias is None else switches.qkv_bias
    q = _project(b, config, switches, layer, "q", h, heads, biased)
    k = _project(b, config, switches, layer, "k", h, kv_heads, biased)
    v = _project(b, config, switches, layer, "v", h, kv_heads, biased)
    if switches.qk_norm:
        q = _head_norm(b, config, layer, "q", q, heads)
        k = _head_norm(b, config, layer, "k", k, kv_heads)
    if _rotates(config, switches, layer):
        rotary = 2 * (int(width * config.rope.rotary_fraction) // 2)
        q = b.rope(f"{layer}.qr", q, angles, heads=heads, rotary=rotary)
        k = b.rope(f"{layer}.kr", k, angles, heads=kv_heads, rotary=rotary)
    window = config.windows[layer] if config.windows else switches.window
    group = b.group(KVGroup(f"window.{window}", "window", window) if window else KVGroup("full", "full"))
    cache_k = b.cache(group, f"{layer}.k_cache", kv_heads * width)
    cache_v = b.cache(group, f"{layer}.v_cache", kv_heads * width)
    kv = b.kv_write(f"{layer}.kv", k, v, cache_k, cache_v, kv_heads=kv_heads)
    a = b.attention(
        f"{layer}.a",
        q,
        kv,
        cache_k=cache_k,
        cache_v=cache_v,
        heads=heads,
        kv_heads=kv_heads,
        scale=width**-0.5,
        window=window,
    )
    names = f"model.layers.{layer}.self_attn.o_proj", f"blk.{layer}.attn_output"
    wo = b.weight(
        f"{layer}.wo", (config.hidden_size, heads * width), hf=f"{names[0]}.weight", gguf=f"{names[1]}.weight"
    )
    bias = None
    # A GGUF file's own tensors say what is biased, and these architectures never bias `o` there.
    if config.source == "hf" and (bool(config.attention_bias) if switches.o_bias is None else switches.o_bias):
        bias = b.weight(f"{layer}.bo", (config.hidden_size,), hf=f"{names[0]}.bias", gguf=f"{names[1]}.bias")
    return b.add(f"{layer}.x1", x, b.linear(f"{layer}.o", a, wo, bias))


def _mlp(b: Builder, config: ModelConfig, layer: int, x: str) -> str:
    """x + down(act(gate(h)) * up(h)), h = norm(x)."""
    h = _norm(b, config, f"{layer}.h2", x, f"{layer}.ffn_norm", "post_attention_layernorm", "ffn_norm", layer)
    shape = (config.intermediate_size, config.hidden_size)
    matrices = {}
    for name in ("gate", "up", "down"):
        hf, gguf = f"model.layers.{layer}.mlp.{name}_proj.weight", f"blk.{layer}.ffn_{name}.weight"
        matrices[name] = b.weight(f"{layer}.w{name}", shape if name != "down" else shape[::-1], hf=hf, gguf=gguf)
    gate = b.linear(f"{layer}.gate", h, matrices["gate"])
    up = b.linear(f"{layer}.up", h, matrices["up"])
    f = b.glu(f"{layer}.f", gate, up, act=config.activation)
    return b.add(f"{layer + 1}.x", x, b.linear(f"{layer}.d", f, matrices["down"]))


def _norm(b: Builder, config: ModelConfig, out: str, x: str, weight: str, hf: str, gguf: str, layer: int) -> str:
    name = b.weight(
        weight,
        (config.hidden_size,),
        hf=f"model.layers.{layer}.{hf}.weight",
        gguf=f"blk.{layer}.{gguf}.weight",
    )
    return b.norm(out, x, name, eps=config.rms_eps, dtype="act")


def _project(
    b: Builder, config: ModelConfig, switches: Switches, layer: int, name: str, h: str, heads: int, biased: bool
) -> str:
    """One of q, k, v: f32 [T, heads d]."""
    interleaved = config.source == "gguf" and switches.gguf_interleaved and name != "v"
    prep: tuple[tuple[Scalar, ...], ...] = (("unpermute_rope", heads),) if interleaved else ()
    hf, gguf = f"model.layers.{layer}.self_attn.{name}_proj", f"blk.{layer}.attn_{name}"
    width = heads * config.head_dim
    matrix = b.weight(
        f"{layer}.w{name}", (width, config.hidden_size), hf=f"{hf}.weight", gguf=f"{gguf}.weight", prep=prep
    )
    bias = b.weight(f"{layer}.b{name}", (width,), hf=f"{hf}.bias", gguf=f"{gguf}.bias", prep=prep) if biased else None
    return b.linear(f"{layer}.{name}", h, matrix, bias)


def _head_norm(b: Builder, config: ModelConfig, layer: int, name: str, x: str, heads: int) -> str:
    weight = b.weight(
        f"{layer}.{name}_norm",
        (config.head_dim,),
        hf=f"model.layers.{layer}.self_attn.{name}_norm.weight",
        gguf=f"blk.{layer}.attn_{name}_norm.weight",
    )
    return b.norm(f"{layer}.{name}n", x, weight, eps=config.rms_eps, heads=heads)


def _rotates(config: ModelConfig, switches: Switches, layer: int) -> bool:
    if config.rope_layers is not None:
        return config.rope_layers[layer]
    return not switches.no_rope_interval or (layer + 1) % switches.no_rope_interval != 0
