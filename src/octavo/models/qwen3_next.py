"""Qwen3-Next: layers of the gated delta rule, every fourth of gated attention, each with a mixture of experts.

A recurrent layer keeps a state of constant size per sequence (program/recurrence.py). Its file holds the rows of q, k,
v and z, and of b and a, side by side per key head. Source: Qwen3-Next's model card and arXiv 2412.06464.

Legend: T tokens, R logit rows, D hidden, V vocabulary, H query heads, K KV heads, d head size; n value heads of dv, and
m key heads of dk of the delta rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.model_recurrence import RecurrenceSpec
from octavo.models import layer as parts
from octavo.models.draft import Module
from octavo.models.mixture import Mixture
from octavo.models.rope import frequencies
from octavo.program import experts, recurrence
from octavo.program.builder import Builder
from octavo.program.experts import Routing
from octavo.program.ir import Program, Scalar
from octavo.program.recurrence import DeltaShape

# Names in GGUF, whose files have two tensors for in_proj_qkvz, -exp(A_log), and 1 added to norms.
_GGUF = {
    "in_proj_ba.weight": "ssm_ba.weight",
    "conv1d.weight": "ssm_conv1d.weight",
    "A_log": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "norm.weight": "ssm_norm.weight",
    "out_proj.weight": "ssm_out.weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs. offset_norms: weights of norms are stored less 1, but for that of the delta rule's output.
    attention_gate: the projection of q is twice as wide, and its second half of each head gates what attention gives.
    normalize: the chosen experts' shares sum to 1, where the file does not say. shared: an expert that every row goes
    to, with a gate of its own. theta: rotary base where the file does not say."""

    offset_norms: bool = True
    attention_gate: bool = True
    normalize: bool = True
    shared: bool = True
    theta: float = 1e7


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    if config.recurrence is None:
        raise ConfigError("the heads of the delta rule are missing", param="linear_num_value_heads")
    b = Builder(config.architecture)
    b.spare.append("mtp.")  # the module that drafts
    v, d = config.vocab_size, config.hidden_size
    order = _order(config, switches)
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if config.tie_embeddings else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    inv_freq, factor = frequencies(config.rope, config.head_dim, config.max_position, switches.theta, max_model_len)
    x = b.embed("0.x", "token", embedding)
    angles = b.rope_angles("angles", "position", inv_freq=inv_freq, factor=factor)
    norm = parts.Norm(hidden=d, eps=config.rms_eps, order=order)
    for layer in range(config.num_layers):
        h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
        if config.recurrence.layers[layer]:
            y = _delta(b, config, config.recurrence, layer, h)
        else:
            y = _attention(b, config, switches, layer, h, angles, 2 * len(inv_freq))
        x = b.add(f"{layer}.x1", x, y)
        h = norm.write(b, layer, "h2", x, hf="post_attention_layernorm", gguf="post_attention_norm", dtype="act")
        x = b.add(f"{layer + 1}.x", x, _mlp(b, config, switches, layer, h))
    rows = b.take("last", x, "logit_row")
    b.linear("logits", b.norm("final", rows, final, eps=config.rms_eps, order=order, dtype="act"), head)
    b.export("logits")
    return b.build()


def draft_modules(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> tuple[Module, ...]:
    """A layer of gated attention with a mixture; its tensors stand apart, and in folders alone."""
    order, layer = _order(config, switches), config.num_layers
    mixed = config.experts
    if mixed is not None:
        mixed = replace(mixed, sparse=(*mixed.sparse, any(mixed.sparse)))
    longer = replace(config, experts=mixed)
    inv_freq, factor = frequencies(config.rope, config.head_dim, config.max_position, switches.theta, max_model_len)
    norm = parts.Norm(hidden=config.hidden_size, eps=config.rms_eps, order=order)

    def write(b: Builder, x: str, keys: str | None) -> tuple[str, str | None]:
        angles = b.rope_angles("mtp.angles", "position", inv_freq=inv_freq, factor=factor)
        h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
        x = b.add(f"{layer}.x1", x, _attention(b, longer, switches, layer, h, angles, 2 * len(inv_freq)))
        h = norm.write(b, layer, "h2", x, hf="post_attention_layernorm", gguf="post_attention_norm", dtype="act")
        x = b.add(f"{layer + 1}.x", x, _mlp(b, longer, switches, layer, h))
        for name, weight in b.weights.items():
            moved = weight.sources["hf"].replace(f"model.layers.{layer}.", "mtp.layers.0.")
            b.weights[name] = replace(weight, sources={**weight.sources, "hf": moved})
        return x, keys

    def named(hf: str) -> tuple[str, str]:
        return f"mtp.{hf}.weight", ""

    norms = named("pre_fc_norm_embedding"), named("pre_fc_norm_hidden")
    return (Module(config.rms_eps, order, *norms, named("fc"), named("norm"), write),)


def _order(config: ModelConfig, switches: Switches) -> str:
    """Converters to GGUF add the 1."""
    return "gemma" if switches.offset_norms and config.source == "hf" else "llama"


def _delta(b: Builder, config: ModelConfig, spec: RecurrenceSpec, layer: int, h: str) -> str:
    """f32 [T, D]: out(norm(delta_rule(conv(q k v), b, a)) silu(z)), all from h [T, D]."""
    n, dv, m, dk = spec.heads, spec.value_dim, spec.key_heads, spec.key_dim
    shape, each = DeltaShape(key_heads=m, key_dim=dk, heads=n, value_dim=dv), n // m

    gguf = config.source == "gguf"

    def weight(
        name: str,
        size: tuple[int, ...],
        hf: str,
        prep: tuple[Scalar, ...] = (),
        *,
        plain: bool = False,
        own: tuple[str, tuple[Scalar, ...]] | None = None,
    ) -> str:
        """own: name and preparation in GGUF where they are others."""
        called, prep = own if gguf and own is not None else (_GGUF.get(hf, ""), prep)
        source, steps = f"model.layers.{layer}.linear_attn.{hf}", (prep,) if prep else ()
        return b.weight(f"{layer}.{name}", size, hf=source, gguf=f"blk.{layer}.{called}", prep=steps, plain=plain)

    cuts = (0, dk, 2 * dk, 2 * dk + each * dv, 2 * (dk + each * dv))
    qkv_rows = ("head_rows", m, *cuts[0:2], *cuts[1:3], *cuts[2:4])
    wqkv = weight(
        "wqkv", (shape.channels, config.hidden_size), "in_proj_qkvz.weight", qkv_rows, own=("attn_qkv.weight", ())
    )
    z_rows = ("head_rows", m, *cuts[3:5])
    wz = weight("wz", (n * dv, config.hidden_size), "in_proj_qkvz.weight", z_rows, own=("attn_gate.weight", ()))
    halves = ("head_rows", m, 0, each, each, 2 * each)
    wba = weight("wba", (2 * n, config.hidden_size), "in_proj_ba.weight", halves)
    qkv, z, ba = (b.linear(f"{layer}.{out}", h, w) for out, w in (("qkv", wqkv), ("z", wz), ("ba", wba)))
    kernel = weight("conv", (shape.channels, 1, spec.taps), "conv1d.weight", ("taps",) if gguf else (), plain=True)
    x = recurrence.conv_state(b, f"{layer}.c", qkv, kernel)
    a_log, dt_bias = weight("a_log", (n,), "A_log", ("rates",) if gguf else ()), weight("dt_bias", (n,), "dt_bias")
    gates = recurrence.delta_gates(b, f"{layer}.decay", f"{layer}.beta", ba, a_log, dt_bias)
    o = recurrence.delta_rule(b, f"{layer}.s", x, gates, shape)
    o = b.norm(f"{layer}.sn", o, weight("norm", (dv,), "norm.weight"), eps=config.rms_eps, heads=n)
    gated = b.glu(f"{layer}.sg", z, o, act="silu")
    return b.linear(f"{layer}.so", gated, weight("out", (config.hidden_size, n * dv), "out_proj.weight"))


def _attention(
    b: Builder, config: ModelConfig, switches: Switches, layer: int, h: str, angles: str, rotary: int
) -> str:
    """f32 [T, D]: o(attention(rope(norm(q)), rope(norm(k)), v) sigmoid(gate)), all from h [T, D]."""
    heads, kv_heads, width, d = config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size
    order = _order(config, switches)

    def linear(out: str, name: str, rows: int, prep: tuple[Scalar, ...] = ()) -> str:
        hf, gguf = f"model.layers.{layer}.self_attn.{name}_proj", f"blk.{layer}.attn_{name}"
        chosen = (prep,) if prep else ()
        w = b.weight(f"{layer}.w{out}", (rows, d), hf=f"{hf}.weight", gguf=f"{gguf}.weight", prep=chosen)
        bias = None
        if config.attention_bias:
            bias = b.weight(f"{layer}.b{out}", (rows,), hf=f"{hf}.bias", gguf=f"{gguf}.bias", prep=chosen)
        return b.linear(f"{layer}.{out}", h, w, bias)

    def rotated(name: str, x: str, count: int) -> str:
        hf, gguf = f"model.layers.{layer}.self_attn.{name}_norm.weight", f"blk.{layer}.attn_{name}_norm.weight"
        w = b.weight(f"{layer}.{name}_norm", (width,), hf=hf, gguf=gguf)
        x = b.norm(f"{layer}.{name}n", x, w, eps=config.rms_eps, order=order, heads=count)
        return b.rope(f"{layer}.{name}r", x, angles, heads=count, rotary=rotary)

    gated = switches.attention_gate
    q = linear("q", "q", heads * width, ("head_rows", heads, 0, width) if gated else ())
    k, v = (linear(name, name, kv_heads * width) for name in "kv")
    spec = parts.Attention(hidden=d, heads=heads, kv_heads=kv_heads, width=width, scale=width**-0.5)
    a = parts.attend(b, spec, layer, rotated("q", q, heads), rotated("k", k, kv_heads), v)
    if gated:
        gate = linear("g", "q", heads * width, ("head_rows", heads, width, 2 * width))
        a = experts.gate(b, f"{layer}.ag", a, gate)
    hf, gguf = f"model.layers.{layer}.self_attn.o_proj", f"blk.{layer}.attn_output"
    wo = b.weight(f"{layer}.wo", (d, heads * width), hf=f"{hf}.weight", gguf=f"{gguf}.weight")
    bias = b.weight(f"{layer}.bo", (d,), hf=f"{hf}.bias", gguf=f"{gguf}.bias") if config.attention_bias else None
    return b.linear(f"{layer}.o", a, wo, bias)


def _mlp(b: Builder, config: ModelConfig, switches: Switches, layer: int, h: str) -> str:
    """f32 [T, D]: a mixture, or in some layers the one MLP of all rows."""
    act, spec = config.activation or "silu", config.experts
    if spec is None or not spec.sparse[layer]:
        return parts.mlp(b, layer, h, hidden=config.hidden_size, width=config.intermediate_size, act=act)
    normalize = switches.normalize if spec.normalize is None else spec.normalize
    mixture = Mixture(
        hidden=config.hidden_size,
        spec=spec,
        routing=Routing(k=spec.k, normalize=normalize),
        act=act,
        shared="gated" if switches.shared else "none",
        gguf=config.source == "gguf",
    )
    return mixture.write(b, layer, h)
