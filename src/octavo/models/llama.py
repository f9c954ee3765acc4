"""The Llama family: blocks of grouped-query attention and a gated MLP, with rotary positions.

Writes the plain program of a configuration and names every weight in both file formats. Members differ in the
switches below and in nothing else. Sources: arXiv 2302.13971 (Llama), 2412.15115 and 2505.09388 (Qwen), 2501.00656
(OLMo 2), SmolLM3's card.

Legend: T tokens, R logit rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.model_config import ModelConfig
from octavo.models import layer as parts
from octavo.models.rope import frequencies
from octavo.program.builder import Builder
from octavo.program.ir import Program
from octavo.rope_spec import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs. None: what the checkpoint states, else off.

    qkv_bias, o_bias: vectors on the projections. qk_norm: RMS norm of q and k before rotation, of each head or of the
    whole row. norms: what goes into a branch is normed, or what comes out of it.
    tied: the head is the embedding where the file does not say. theta: rotary base where the file does not say.
    no_rope_interval n: every n-th layer does not rotate. window: where the file does not say, in every layer, or with
    window_period n in all but every n-th. scaled_windows: layers that slide rotate as the others do.
    gguf_interleaved: GGUF files of this member hold q and k rows in interleaved rotary order.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: Literal["none", "head", "row"] = "none"
    norms: Literal["before", "after"] = "before"
    tied: bool = False
    theta: float = 10_000.0
    no_rope_interval: int = 0
    window: int = 0
    window_period: int = 0
    scaled_windows: bool = True
    gguf_interleaved: bool = False


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    b = Builder(config.architecture)
    v, d = config.vocab_size, config.hidden_size
    tied = switches.tied if config.tie_embeddings is None else config.tie_embeddings
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if tied else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    x = b.embed("0.x", "token", embedding)
    angles = {"": _angles(b, config, switches, max_model_len, "angles", config.rope)}
    local = _local_rope(config, switches)
    if local is not None and any(_window(config, switches, layer) for layer in range(config.num_layers)):
        angles["local"] = _angles(b, config, switches, max_model_len, "local_angles", local)
    for layer in range(config.num_layers):
        x = _block(b, config, switches, layer, x, angles)
    rows = b.take("last", x, "logit_row")
    b.linear("logits", b.norm("final", rows, final, eps=config.rms_eps, dtype="act"), head)
    b.export("logits")
    return b.build()


def _block(b: Builder, config: ModelConfig, switches: Switches, layer: int, x: str, angles: dict[str, str]) -> str:
    """x + attention, then x + mlp: each of its normed input, or normed itself."""
    norm = parts.Norm(hidden=config.hidden_size, eps=config.rms_eps)
    spec = _attention(config, switches, layer, angles)
    if switches.norms == "before":
        h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
        x = b.add(f"{layer}.x1", x, parts.attention(b, spec, layer, h))
        h = norm.write(b, layer, "h2", x, hf="post_attention_layernorm", gguf="ffn_norm", dtype="act")
        return b.add(f"{layer + 1}.x", x, _mlp(b, config, layer, h))
    o = parts.attention(b, spec, layer, x)
    o = norm.write(b, layer, "on", o, hf="post_attention_layernorm", gguf="post_attention_norm")
    x = b.add(f"{layer}.x1", x, o)
    d = norm.write(b, layer, "dn", _mlp(b, config, layer, x), hf="post_feedforward_layernorm", gguf="post_ffw_norm")
    return b.add(f"{layer + 1}.x", x, d)


def _mlp(b: Builder, config: ModelConfig, layer: int, h: str) -> str:
    width, act, bias = config.intermediate_size, config.activation or "silu", bool(config.mlp_bias)
    return parts.mlp(b, layer, h, hidden=config.hidden_size, width=width, act=act, bias=bias)


def _attention(config: ModelConfig, switches: Switches, layer: int, angles: dict[str, str]) -> parts.Attention:
    width, window = config.head_dim, _window(config, switches, layer)
    stated = bool(config.attention_bias)
    return parts.Attention(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        width=width,
        scale=width**-0.5,
        window=window,
        qkv_bias=stated if switches.qkv_bias is None else switches.qkv_bias,
        # A GGUF file's own tensors say what is biased, and these architectures never bias `o` there.
        o_bias=config.source == "hf" and (stated if switches.o_bias is None else switches.o_bias),
        qk_norm=switches.qk_norm,
        eps=config.rms_eps,
        angles=angles.get("local" if window else "", angles[""]) if _rotates(config, switches, layer) else None,
        rotary=2 * (int(width * config.rope.rotary_fraction) // 2),
        interleaved=config.source == "gguf" and switches.gguf_interleaved,
    )


def _angles(
    b: Builder, config: ModelConfig, switches: Switches, max_model_len: int | None, name: str, rope: RopeSpec
) -> str:
    inv_freq, factor = frequencies(rope, config.head_dim, config.max_position, switches.theta, max_model_len)
    return b.rope_angles(name, "position", inv_freq=inv_freq, factor=factor)


def _local_rope(config: ModelConfig, switches: Switches) -> RopeSpec | None:
    """How layers that slide rotate, where it is not as the others do."""
    if config.local_rope is None and not switches.scaled_windows:
        return RopeSpec(theta=config.rope.theta, rotary_fraction=config.rope.rotary_fraction)
    return config.local_rope


def _window(config: ModelConfig, switches: Switches, layer: int) -> int:
    """Keys that a query of this layer sees, itself included; 0: all."""
    if config.windows:
        return config.windows[layer]
    period = config.window_period or switches.window_period
    if period and (layer + 1) % period == 0:
        return 0
    return switches.window if config.window is None else config.window


def _rotates(config: ModelConfig, switches: Switches, layer: int) -> bool:
    if config.rope_layers is not None:
        return config.rope_layers[layer]
    return not switches.no_rope_interval or (layer + 1) % switches.no_rope_interval != 0
