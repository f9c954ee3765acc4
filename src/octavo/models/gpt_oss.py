"""gpt-oss: pre-norm blocks of attention with sinks, windows in turn, and mixtures with a clamped gate and biases.

Source: the model card, arXiv 2508.10925. The experts' gate and up rows stand in turn in one tensor of safetensors,
transposed where they are floats; GGUF holds them apart. Legend: T tokens, R logit rows, D hidden, E experts, F width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.model_experts import ExpertSpec
from octavo.models import layer as parts
from octavo.models.rope import frequencies
from octavo.program import experts
from octavo.program.builder import Builder
from octavo.program.experts import Matrices, Routing
from octavo.program.ir import Program, Scalar

Prep = tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What holds where the file is silent. window, period: keys that a query sees in all but every period-th layer.
    alpha, limit: of the clamped gate. truncate: YaRN's bounds are whole pairs, which a GGUF file does not say.
    bias: vectors on q, k, v and o. theta: rotary base."""

    window: int = 128
    period: int = 2
    alpha: float = 1.702
    limit: float = 7.0
    truncate: bool = False
    bias: bool = True
    theta: float = 150_000.0


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    spec = config.experts
    if spec is None:
        raise ConfigError("the number of experts is missing", param="num_local_experts")
    b = Builder(config.architecture)
    v, d = config.vocab_size, config.hidden_size
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if config.tie_embeddings else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    rope = config.rope if config.source == "hf" else replace(config.rope, truncate=switches.truncate)
    inv_freq, factor = frequencies(rope, config.head_dim, config.max_position, switches.theta, max_model_len)
    x = b.embed("0.x", "token", embedding)
    angles = b.rope_angles("angles", "position", inv_freq=inv_freq, factor=factor)
    norm = parts.Norm(hidden=d, eps=config.rms_eps, order="fp32_mul")
    for layer in range(config.num_layers):
        h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
        x = b.add(f"{layer}.x1", x, parts.attention(b, _attention(config, switches, layer, angles), layer, h))
        h = norm.write(b, layer, "h2", x, hf="post_attention_layernorm", gguf="post_attention_norm", dtype="act")
        x = b.add(f"{layer + 1}.x", x, _mlp(b, config, spec, switches, layer, h))
    rows = b.take("last", x, "logit_row")
    b.linear("logits", b.norm("final", rows, final, eps=config.rms_eps, order="fp32_mul", dtype="act"), head)
    b.export("logits")
    return b.build()


def _attention(config: ModelConfig, switches: Switches, layer: int, angles: str) -> parts.Attention:
    width = config.head_dim
    biased = switches.bias if config.attention_bias is None else config.attention_bias
    return parts.Attention(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        width=width,
        scale=width**-0.5,
        window=_window(config, switches, layer),
        qkv_bias=biased,
        o_bias=biased,
        sinks=True,
        angles=angles,
        rotary=width,
    )


def _window(config: ModelConfig, switches: Switches, layer: int) -> int:
    if config.windows:
        return config.windows[layer]
    window = switches.window if config.window is None else config.window
    return 0 if (layer + 1) % (config.window_period or switches.period) == 0 else window


def _mlp(b: Builder, config: ModelConfig, spec: ExpertSpec, switches: Switches, layer: int, h: str) -> str:
    """f32 [T, D]: the k experts with the largest logits, weighed by a softmax over those alone."""
    hf, gguf = f"model.layers.{layer}.mlp.router", f"blk.{layer}.ffn_gate_inp"
    shape = (spec.count, config.hidden_size)
    router = b.weight(f"{layer}.wrouter", shape, hf=f"{hf}.weight", gguf=f"{gguf}.weight", plain=True)
    bias = b.weight(f"{layer}.brouter", shape[:1], hf=f"{hf}.bias", gguf=f"{gguf}.bias")
    logits = experts.linear_f32(b, f"{layer}.rl", h, router, bias)
    routing = Routing(k=spec.k, normalize=True)
    chosen = experts.route(b, f"{layer}.ids", f"{layer}.shares", logits, routing)
    clamp = {"alpha": spec.alpha or switches.alpha, "limit": spec.limit or switches.limit}
    return experts.mixture(b, f"{layer}", h, chosen, _matrices(b, config, spec, layer), act="clamped", **clamp)


def _matrices(b: Builder, config: ModelConfig, spec: ExpertSpec, layer: int) -> Matrices:
    d, f, packed = config.hidden_size, spec.width, config.source == "hf"
    turned: Prep = (("transpose",),) if packed and config.quantization is None else ()
    names = {}
    for name, first in (("gate", 0), ("up", 1), ("down", -1)):
        shape = (spec.count, d, f) if name == "down" else (spec.count, f, d)
        hf = f"model.layers.{layer}.mlp.experts.{'down' if name == 'down' else 'gate_up'}_proj"
        gguf = f"blk.{layer}.ffn_{name}_exps"
        half = packed and first >= 0
        rows: Prep = (("rows", first, 2, f),) if half else ()
        columns: Prep = (("columns", first, 2, f),) if half else ()
        names[name] = b.weight(f"{layer}.we{name}", shape, hf=hf, gguf=f"{gguf}.weight", prep=turned + rows)
        names[f"{name}_bias"] = b.weight(
            f"{layer}.be{name}", shape[:2], hf=f"{hf}_bias", gguf=f"{gguf}.bias", prep=columns, plain=True
        )
    return Matrices(**names)
