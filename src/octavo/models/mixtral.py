"""Mixtures of experts over Llama's blocks: Mixtral (arXiv 2401.04088), Qwen2-MoE, Qwen3-MoE (2505.09388).

Members differ in the switches below and in nothing else. Legend: T tokens, R logit rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.model_experts import ExpertSpec
from octavo.models import layer as parts
from octavo.models.mixture import Mixture
from octavo.models.rope import frequencies
from octavo.program.builder import Builder
from octavo.program.experts import Routing
from octavo.program.ir import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs.

    qkv_bias: vectors on q, k and v where the file does not say; o_bias: on o where they are on those. qk_norm: RMS norm
    of each head of q and k before rotation. normalize: the chosen experts' shares sum to 1, where the file does not
    say. shared: an expert that every row goes to, with a gate of its own. theta: rotary base where the file does not
    say. older: names of files of the first generation. gguf_interleaved: GGUF files hold q and k rows in interleaved
    rotary order.
    """

    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head"] = "none"
    normalize: bool = True
    shared: bool = False
    theta: float = 1e6
    older: tuple[str, str, str, str] | None = None
    gguf_interleaved: bool = False


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    if config.experts is None:
        raise ConfigError("the number of experts is missing", param="num_experts")
    b = Builder(config.architecture)
    v, d = config.vocab_size, config.hidden_size
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if config.tie_embeddings else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    inv_freq, factor = frequencies(config.rope, config.head_dim, config.max_position, switches.theta, max_model_len)
    x = b.embed("0.x", "token", embedding)
    angles = b.rope_angles("angles", "position", inv_freq=inv_freq, factor=factor)
    norm = parts.Norm(hidden=d, eps=config.rms_eps)
    for layer in range(config.num_layers):
        h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
        x = b.add(f"{layer}.x1", x, parts.attention(b, _attention(config, switches, layer, angles), layer, h))
        h = norm.write(b, layer, "h2", x, hf="post_attention_layernorm", gguf="ffn_norm", dtype="act")
        x = b.add(f"{layer + 1}.x", x, _mlp(b, config, config.experts, switches, layer, h))
    rows = b.take("last", x, "logit_row")
    b.linear("logits", b.norm("final", rows, final, eps=config.rms_eps, dtype="act"), head)
    b.export("logits")
    return b.build()


def _attention(config: ModelConfig, switches: Switches, layer: int, angles: str) -> parts.Attention:
    width = config.head_dim
    biased = switches.qkv_bias if config.attention_bias is None else config.attention_bias
    return parts.Attention(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        width=width,
        scale=width**-0.5,
        window=config.windows[layer] if config.windows else config.window or 0,
        qkv_bias=biased,
        o_bias=biased and switches.o_bias and config.source == "hf",
        qk_norm=switches.qk_norm,
        eps=config.rms_eps,
        angles=angles,
        rotary=width,
        interleaved=config.source == "gguf" and switches.gguf_interleaved,
    )


def _mlp(b: Builder, config: ModelConfig, spec: ExpertSpec, switches: Switches, layer: int, h: str) -> str:
    """f32 [T, D]: a mixture, or in some layers the one MLP of all rows."""
    act = config.activation or "silu"
    if not spec.sparse[layer]:
        return parts.mlp(b, layer, h, hidden=config.hidden_size, width=config.intermediate_size, act=act)
    normalize = switches.normalize if spec.normalize is None else spec.normalize
    mixture = Mixture(
        hidden=config.hidden_size,
        spec=spec,
        routing=Routing(k=spec.k, normalize=normalize, scale=spec.scale or 1.0),
        act=act,
        shared="gated" if switches.shared else "none",
        older=switches.older,
        gguf=config.source == "gguf",
    )
    return mixture.write(b, layer, h)
