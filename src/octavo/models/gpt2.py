"""The GPT-2 family: learned positions, layer norms with biases, a plain MLP with gelu, the head tied to the embedding.

Safetensors hold the matrices of layers turned, and q, k and v side by side; GGUF holds them as every family does.
Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".

Legend: T tokens, R logit rows, D hidden, F intermediate, V vocabulary, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.model_config import ModelConfig
from octavo.models import layer as parts
from octavo.program.builder import Builder
from octavo.program.ir import Program, Scalar

_TURNED: tuple[tuple[Scalar, ...], ...] = (("transpose",),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs. act: where the file does not say. turned: safetensors hold [inputs, outputs]."""

    act: str = "gelu_tanh"
    turned: bool = True


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]."""
    b = Builder(config.architecture)
    v, d = config.vocab_size, config.hidden_size
    embedding = b.weight("embed", (v, d), hf="transformer.wte.weight", gguf="token_embd.weight")
    places = b.weight("positions", (config.max_position, d), hf="transformer.wpe.weight", gguf="position_embd.weight")
    tied = config.tie_embeddings is not False
    head = embedding if tied else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    x = b.add("0.x", b.embed("tokens", "token", embedding), b.embed("places", "position", places))
    for layer in range(config.num_layers):
        x = _block(b, config, switches, layer, x)
    rows = b.take("last", x, "logit_row")
    b.linear("logits", _norm(b, config, "final", rows, "norm", "transformer.ln_f", "output_norm"), head)
    b.export("logits")
    return b.build()


def _block(b: Builder, config: ModelConfig, switches: Switches, layer: int, x: str) -> str:
    """x + attention(norm(x)), then x + mlp(norm(x))."""
    d, f, here = config.hidden_size, config.intermediate_size, f"transformer.h.{layer}"
    h = _norm(b, config, f"{layer}.h", x, f"{layer}.attn_norm", f"{here}.ln_1", f"blk.{layer}.attn_norm")
    spec = parts.Attention(
        hidden=d,
        heads=config.num_heads,
        kv_heads=config.num_heads,
        width=config.head_dim,
        scale=config.head_dim**-0.5,
    )
    qkv = f"{here}.attn.c_attn", f"blk.{layer}.attn_qkv"
    q, k, v = (
        _linear(b, config, switches, f"{layer}.{name}", h, (d, d), *qkv, rows=(number * d, (number + 1) * d))
        for number, name in enumerate("qkv")
    )
    a = parts.attend(b, spec, layer, q, k, v)
    names = f"{here}.attn.c_proj", f"blk.{layer}.attn_output"
    x = b.add(f"{layer}.x1", x, _linear(b, config, switches, f"{layer}.o", a, (d, d), *names))
    h = _norm(b, config, f"{layer}.h2", x, f"{layer}.ffn_norm", f"{here}.ln_2", f"blk.{layer}.ffn_norm")
    up = _linear(b, config, switches, f"{layer}.up", h, (f, d), f"{here}.mlp.c_fc", f"blk.{layer}.ffn_up")
    g = b.act(f"{layer}.f", up, act=config.activation or switches.act)
    down = _linear(b, config, switches, f"{layer}.d", g, (d, f), f"{here}.mlp.c_proj", f"blk.{layer}.ffn_down")
    return b.add(f"{layer + 1}.x", x, down)


def _norm(b: Builder, config: ModelConfig, out: str, x: str, name: str, hf: str, gguf: str) -> str:
    """Layer norm: act, for linears to eat."""
    d = (config.hidden_size,)
    weight = b.weight(name, d, hf=f"{hf}.weight", gguf=f"{gguf}.weight")
    bias = b.weight(f"{name}.bias", d, hf=f"{hf}.bias", gguf=f"{gguf}.bias")
    return b.norm(out, x, weight, eps=config.rms_eps, rule="layer", bias=bias, dtype="act")


def _linear(
    b: Builder,
    config: ModelConfig,
    switches: Switches,
    out: str,
    x: str,
    shape: tuple[int, int],
    hf: str,
    gguf: str,
    rows: tuple[int, int] | None = None,
) -> str:
    """f32 [T, m]. rows: which outputs of the file's matrix and bias; None: all."""
    some: tuple[tuple[Scalar, ...], ...] = () if rows is None else (("rows", rows[0], 1, rows[1] - rows[0]),)
    turned = _TURNED if config.source == "hf" and switches.turned else ()
    matrix = b.weight(f"{out}.w", shape, hf=f"{hf}.weight", gguf=f"{gguf}.weight", prep=turned + some)
    bias = b.weight(f"{out}.b", shape[:1], hf=f"{hf}.bias", gguf=f"{gguf}.bias", prep=some)
    return b.linear(out, x, matrix, bias)
