"""The Gemma family: blocks whose branches are normed before and after, gated by gelu, over a scaled embedding.

Layers that slide alternate with layers that see everything; the two may rotate by different bases. Weights of norms
are stored as offsets from 1 in safetensors, as they are in GGUF. Sources: arXiv 2403.08295, 2408.00118, 2503.19786.

Legend: T tokens, R logit rows, D hidden, V vocabulary.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from octavo.model_config import ModelConfig
from octavo.models import layer as parts
from octavo.models.rope import frequencies
from octavo.program.builder import Builder
from octavo.program.ir import Program
from octavo.rope_spec import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs; the rest is what the checkpoint states, or the member's own value where it is silent.

    branch_norms: what comes out of a branch is normed too. qk_norm: RMS norm of each head of q and k before rotation.
    window_period n: every n-th layer sees everything, the others `window` keys (0: all). local_theta: rotary base of
    the others where it is not that of all (0). attention_cap, final_cap: c in c tanh(x / c), 0 for none.
    spare: beginnings of names of the other parts of a checkpoint that also sees images; it holds the text model as one.
    large_layers: with that many layers, scores are divided by the root of D / H where the file does not say (GGUF).
    """

    branch_norms: bool = True
    qk_norm: bool = False
    window: int = 0
    window_period: int = 0
    theta: float = 10_000.0
    local_theta: float = 0.0
    attention_cap: float = 0.0
    final_cap: float = 0.0
    large_layers: int = 0
    spare: tuple[str, ...] = ()


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    b = Builder(config.architecture)
    b.spare += switches.spare
    v, d = config.vocab_size, config.hidden_size
    tied = config.tie_embeddings is not False
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if tied else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    norm = parts.Norm(hidden=d, eps=config.rms_eps, order="gemma" if config.source == "hf" else "llama")
    x = b.embed("0.x", "token", embedding, scale=_embedding_scale(config))
    angles = _all_angles(b, config, switches, max_model_len)
    for layer in range(config.num_layers):
        x = _block(b, config, switches, norm, layer, x, angles)
    rows = b.take("last", x, "logit_row")
    cap = switches.final_cap if config.final_cap is None else config.final_cap
    h = b.norm("final", rows, final, eps=norm.eps, order=norm.order, dtype="act")
    logits = b.linear("uncapped" if cap else "logits", h, head)
    if cap:
        b.cap("logits", logits, cap=cap)
    b.export("logits")
    return b.build()


def _block(
    b: Builder, config: ModelConfig, switches: Switches, norm: parts.Norm, layer: int, x: str, angles: dict[str, str]
) -> str:
    """x + norm(attention(norm(x))), then the same with the MLP."""
    branch = switches.branch_norms
    h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
    o = parts.attention(b, _attention(config, switches, norm, layer, angles), layer, h)
    if branch:
        o = norm.write(b, layer, "on", o, hf="post_attention_layernorm", gguf="post_attention_norm")
    x = b.add(f"{layer}.x1", x, o)
    before = "pre_feedforward_layernorm" if branch else "post_attention_layernorm"
    h = norm.write(b, layer, "h2", x, hf=before, gguf="ffn_norm", dtype="act")
    # Early files say gelu, and mean its tanh form.
    act = "gelu_tanh" if config.activation in (None, "gelu") else config.activation
    d = parts.mlp(b, layer, h, hidden=config.hidden_size, width=config.intermediate_size, act=act)
    if branch:
        d = norm.write(b, layer, "dn", d, hf="post_feedforward_layernorm", gguf="post_ffw_norm")
    return b.add(f"{layer + 1}.x", x, d)


def _attention(
    config: ModelConfig, switches: Switches, norm: parts.Norm, layer: int, angles: dict[str, str]
) -> parts.Attention:
    window, width = _window(config, switches, layer), config.head_dim
    stated = config.attention_cap
    biased = bool(config.attention_bias)
    return parts.Attention(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        width=width,
        scale=_query_scalar(config, switches) ** -0.5,
        window=window,
        cap=switches.attention_cap if stated is None else stated,
        qkv_bias=biased,
        o_bias=biased and config.source == "hf",
        qk_norm="head" if switches.qk_norm else "none",
        eps=norm.eps,
        order=norm.order,
        angles=angles.get("local" if window else "", angles[""]),
        rotary=2 * (width // 2),
    )


def _embedding_scale(config: ModelConfig) -> float:
    """sqrt(D), as the type of the weights holds it: bf16 where the checkpoint is in bf16, else f32."""
    scale = struct.pack("f", math.sqrt(config.hidden_size))
    if config.dtype != "bfloat16":
        return float(struct.unpack("f", scale)[0])
    bits = int.from_bytes(scale, "little")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return float(struct.unpack("f", rounded.to_bytes(4, "little"))[0])


def _query_scalar(config: ModelConfig, switches: Switches) -> float:
    if config.query_scalar is not None:
        return config.query_scalar
    large = config.num_layers == switches.large_layers
    return config.hidden_size / config.num_heads if large else config.head_dim


def _all_angles(b: Builder, config: ModelConfig, switches: Switches, max_model_len: int | None) -> dict[str, str]:
    """Rotary angles of layers that see everything (""), and of those that slide where theirs differ ("local")."""
    ropes = {"": ("angles", config.rope)}
    local = config.local_rope
    if local is None and switches.local_theta:
        local = RopeSpec(theta=switches.local_theta)
    if local is not None and any(_window(config, switches, layer) for layer in range(config.num_layers)):
        ropes["local"] = ("local_angles", local)
    angles = {}
    for kind, (name, rope) in ropes.items():
        inv_freq, factor = frequencies(rope, config.head_dim, config.max_position, switches.theta, max_model_len)
        angles[kind] = b.rope_angles(name, "position", inv_freq=inv_freq, factor=factor)
    return angles


def _window(config: ModelConfig, switches: Switches, layer: int) -> int:
    """Keys that a query of this layer sees, itself included; 0: all."""
    if config.windows:
        return config.windows[layer]
    period = config.window_period or switches.window_period
    if not period or (layer + 1) % period == 0:
        return 0
    return switches.window if config.window is None else config.window
