"""The DeepSeek family: pre-norm blocks of latent attention and gated MLPs, some of them mixtures of experts.

Keys and values of all heads come from one latent a token. The matrices that would expand it are multiplied into the
query and into what attention returns instead, always: one form, so one numerics. Members with an index attend to the
keys that it chooses; layers without one use the choice of the nearest before. Sources: arXiv 2405.04434 (V2),
2412.19437 (V3), 2602.15763 (GLM-5), 2603.12201 (shared indices).

Rotated rows stand in interleaved order in files; their weights are brought to half-split order.
Legend: D hidden, H heads, c dims of the latent, n, r, v dims of a head: plain, rotated, of its value; I heads of an
index, k keys that it chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.model_latent import IndexSpec, LatentSpec
from octavo.models import layer as parts
from octavo.models.draft import Module
from octavo.models.mixture import Mixture
from octavo.models.rope import frequencies, yarn_mscale
from octavo.program.builder import Builder
from octavo.program.experts import Routing, linear_f32
from octavo.program.ir import Program, Scalar
from octavo.program.latent import head_linear, index_topk, latent_attention, latent_write
from octavo.types import KVGroup

Prep = tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a member differs.

    theta: rotary base, scoring: of experts, where the file does not say; with sigmoids a bias enters the choice and
    groups count by their two best. latent_eps: of the norms of the latents of query and key; None: that of all other
    norms. index_interleaved: rotated rows of the index stand in interleaved order, where the file does not say;
    index_eps: of the norm of its keys.
    """

    theta: float = 10_000.0
    scoring: str = "softmax"
    latent_eps: float | None = None
    index_interleaved: bool = False
    index_eps: float = 1e-6


def program(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> Program:
    """Exports "logits" f32 [R, V]. max_model_len fixes rotary rules that depend on the longest length served."""
    spec = config.latent
    if spec is None:
        raise ConfigError("kv_lora_rank is missing", param="kv_lora_rank")
    b = Builder(config.architecture)
    v, d = config.vocab_size, config.hidden_size
    embedding = b.weight("embed", (v, d), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    head = embedding if config.tie_embeddings else b.weight("head", (v, d), hf="lm_head.weight", gguf="output.weight")
    final = b.weight("norm", (d,), hf="model.norm.weight", gguf="output_norm.weight")
    inv_freq, factor = frequencies(config.rope, spec.rope_dim, config.max_position, switches.theta, max_model_len)
    x = b.embed("0.x", "token", embedding)
    angles = b.rope_angles("angles", "position", inv_freq=inv_freq, factor=factor)
    chosen: str | None = None
    for layer in range(config.num_layers):
        x, chosen = _block(b, config, switches, spec, layer, x, angles, chosen)
    for layer in range(config.num_layers, config.num_layers + config.draft_layers):
        b.spare += [f"model.layers.{layer}.", f"blk.{layer}."]
    rows = b.take("last", x, "logit_row")
    b.linear("logits", b.norm("final", rows, final, eps=config.rms_eps, dtype="act"), head)
    b.export("logits")
    return b.build()


def draft_modules(config: ModelConfig, switches: Switches, max_model_len: int | None = None) -> tuple[Module, ...]:
    """Behind the last layer of the model stand those that draft, with a mixture and an index if any layer has them."""
    spec, count = config.latent, config.draft_layers
    if spec is None or not count:
        raise ConfigError("no layer that drafts is stated", param="num_nextn_predict_layers")
    index, mixed = spec.index, config.experts
    if index is not None:
        spec = replace(spec, index=replace(index, full=(*index.full, *(True,) * count)))
    if mixed is not None:
        mixed = replace(mixed, sparse=(*mixed.sparse, *(any(mixed.sparse),) * count))
    longer, latent = replace(config, latent=spec, experts=mixed), spec
    inv_freq, factor = frequencies(config.rope, spec.rope_dim, config.max_position, switches.theta, max_model_len)

    def module(layer: int) -> Module:
        def write(b: Builder, x: str, keys: str | None) -> tuple[str, str | None]:
            angles = b.rope_angles("mtp.angles", "position", inv_freq=inv_freq, factor=factor)
            return _block(b, longer, switches, latent, layer, x, angles, keys, given=keys is not None)

        def named(hf: str, gguf: str) -> tuple[str, str]:
            return f"model.layers.{layer}.{hf}.weight", f"blk.{layer}.nextn.{gguf}.weight"

        norms = named("enorm", "enorm"), named("hnorm", "hnorm")
        last = named("shared_head.norm", "shared_head_norm")
        shares = index is not None and index.across_drafts
        return Module(config.rms_eps, "llama", *norms, named("eh_proj", "eh_proj"), last, write, shares)

    return tuple(module(layer) for layer in range(config.num_layers, config.num_layers + count))


def _block(
    b: Builder,
    config: ModelConfig,
    switches: Switches,
    spec: LatentSpec,
    layer: int,
    x: str,
    angles: str,
    chosen: str | None,
    *,
    given: bool = False,
) -> tuple[str, str | None]:
    """(f32 [T, D] of x [T, D], the keys that were chosen). given: those of `chosen` are taken, whoever chose them."""
    norm = parts.Norm(hidden=config.hidden_size, eps=config.rms_eps)
    h = norm.write(b, layer, "h", x, hf="input_layernorm", gguf="attn_norm", dtype="act")
    o, chosen = _Layer(b, config, switches, spec, layer).attention(h, angles, chosen, given=given)
    x = b.add(f"{layer}.x1", x, o)
    h = norm.write(b, layer, "h2", x, hf="post_attention_layernorm", gguf="ffn_norm", dtype="act")
    return b.add(f"{layer + 1}.x", x, _mlp(b, config, switches, layer, h)), chosen


@dataclass(frozen=True, slots=True)
class _Layer:
    """Latent attention of one layer."""

    b: Builder
    config: ModelConfig
    switches: Switches
    spec: LatentSpec
    layer: int

    def attention(self, h: str, angles: str, chosen: str | None, *, given: bool) -> tuple[str, str | None]:
        """(f32 [T, D]: o(W_v attention(W_k^T q, latents)), all from h [T, D]; the keys that were chosen, i32 [T, k]).

        chosen: those of the nearest layer before that has an index. given: they are taken by a layer that has one too.
        """
        b, spec, heads, at = self.b, self.spec, self.config.num_heads, f"{self.layer}."
        low = self._low(h)
        plain, turned = self._query(low)
        c, k = self._key(h)
        turned = b.rope(at + "qr", turned, angles, heads=heads, rotary=spec.rope_dim)
        k = b.rope(at + "kr", k, angles, heads=1, rotary=spec.rope_dim)
        cache = b.cache(b.group(KVGroup("full", "full")), at + "latents", spec.kv_rank + spec.rope_dim)
        kv = latent_write(b, at + "kv", (c, k), cache)
        wk, wv = self._expansion()
        query = head_linear(b, at + "qc", plain, wk, heads=heads), turned
        if spec.index is not None and spec.index.full[self.layer] and not given:
            chosen = self._index(spec.index, h, low, angles)
        a = latent_attention(b, at + "a", query, kv, cache=cache, heads=heads, scale=self._scale(), chosen=chosen)
        values = head_linear(b, at + "v", a, wv, heads=heads)
        return self._linear("o", values, "o_proj", "attn_output", self.config.hidden_size, biased=True), chosen

    def _low(self, h: str) -> str:
        """act [T, q_rank]: what queries are made of; h itself where they are projected at once."""
        if self.spec.q_rank is None:
            return h
        low = self._linear("qa", h, "q_a_proj", "attn_q_a", self.spec.q_rank, biased=True)
        return self._norm("qn", low, "q_a_layernorm", "attn_q_a_norm", self.spec.q_rank)

    def _query(self, h: str) -> tuple[str, str]:
        """(f32 [T, H n], f32 [T, H r])"""
        spec, heads = self.spec, self.config.num_heads
        hf, gguf = ("q_proj", "attn_q") if spec.q_rank is None else ("q_b_proj", "attn_q_b")
        width = spec.nope_dim + spec.rope_dim
        plain = self._linear("q", h, hf, gguf, heads * spec.nope_dim, ("head_rows", heads, 0, spec.nope_dim))
        rows: tuple[Scalar, ...] = ("head_rows", heads, spec.nope_dim, width)
        return plain, self._linear("qt", h, hf, gguf, heads * spec.rope_dim, rows, *self._pairs(heads))

    def _key(self, h: str) -> tuple[str, str]:
        """(f32 [T, c], normed; f32 [T, r], not rotated yet), shared by all heads."""
        spec, hf, gguf = self.spec, "kv_a_proj_with_mqa", "attn_kv_a_mqa"
        rank, width = spec.kv_rank, spec.kv_rank + spec.rope_dim
        c = self._linear("ca", h, hf, gguf, rank, ("head_rows", 1, 0, rank), biased=True)
        rows: tuple[Scalar, ...] = ("head_rows", 1, rank, width)
        k = self._linear("kt", h, hf, gguf, spec.rope_dim, rows, *self._pairs(1), biased=True)
        return self._norm("c", c, "kv_a_layernorm", "attn_kv_a_norm", rank), k

    def _index(self, index: IndexSpec, h: str, low: str, angles: str) -> str:
        """i32 [T, k]: the keys with the largest scores, each a weighed sum over I heads of max(q k, 0)."""
        b, spec, at = self.b, self.spec, f"{self.layer}."
        if spec.q_rank is None:
            raise ConfigError("an index needs q_lora_rank", param="q_lora_rank")
        interleaved = self.switches.index_interleaved if index.interleaved is None else index.interleaved
        pairs: tuple[Prep, Prep] = ((), ())
        if interleaved:
            pairs = (("unpermute_rope", index.heads, spec.rope_dim),), (("unpermute_rope", 1, spec.rope_dim),)
        heads, d = index.heads, index.head_dim
        q = self._linear("iq", low, "indexer.wq_b", "indexer.attn_q_b", heads * d, *pairs[0])
        k = self._linear("ik", h, "indexer.wk", "indexer.attn_k", d, *pairs[1])
        names = f"model.layers.{self.layer}.self_attn.indexer.", f"blk.{self.layer}.indexer."
        weight, bias = (
            b.weight(f"{at}ik_{end}", (d,), hf=f"{names[0]}k_norm.{end}", gguf=f"{names[1]}k_norm.{end}", prep=pairs[1])
            for end in ("weight", "bias")
        )
        k = b.norm(at + "ikn", k, weight, eps=self.switches.index_eps, rule="layer", bias=bias)
        q = b.rope(at + "iqr", q, angles, heads=heads, rotary=spec.rope_dim)
        k = b.rope(at + "ikr", k, angles, heads=1, rotary=spec.rope_dim)
        cache = b.cache(b.group(KVGroup("full", "full")), at + "index", d)
        written = latent_write(b, at + "ikv", (k,), cache)
        shares = b.weight(
            at + "wiw",
            (heads, self.config.hidden_size),
            hf=f"{names[0]}weights_proj.weight",
            gguf=f"{names[1]}proj.weight",
            plain=True,
        )
        shares = linear_f32(b, at + "iw", h, shares)
        scale = float(d * heads) ** -0.5
        return index_topk(b, at + "idx", q, shares, written, cache=cache, heads=heads, top_k=index.top_k, scale=scale)

    def _expansion(self) -> tuple[str, str]:
        """W [H c, n], the transposed expansion to keys, and W [H v, c], that to values: both in floats."""
        spec, heads = self.spec, self.config.num_heads
        name = f"model.layers.{self.layer}.self_attn.kv_b_proj.weight"
        width = spec.nope_dim + spec.value_dim
        keys: Prep = (("head_rows", heads, 0, spec.nope_dim), ("transpose_heads", heads))
        values: Prep = (("head_rows", heads, spec.nope_dim, width),)
        gguf = [f"blk.{self.layer}.attn_kv_b.weight"] * 2
        if spec.split:  # the key half is stored transposed
            keys = values = (("flatten_heads",),)
            gguf = [f"blk.{self.layer}.attn_{half}_b.weight" for half in "kv"]
        shapes = (heads * spec.kv_rank, spec.nope_dim), (heads * spec.value_dim, spec.kv_rank)
        wk = self.b.weight(f"{self.layer}.wuk", shapes[0], hf=name, gguf=gguf[0], prep=keys, floats=True)
        return wk, self.b.weight(f"{self.layer}.wuv", shapes[1], hf=name, gguf=gguf[1], prep=values, floats=True)

    def _scale(self) -> float:
        """1 / sqrt(dims of a head), times what a stretched context adds."""
        rope, scale = self.config.rope, float(self.spec.nope_dim + self.spec.rope_dim) ** -0.5
        if rope.type == "default" or not rope.mscale_all_dim or rope.factor is None:
            return scale
        return scale * yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2

    def _pairs(self, heads: int) -> Prep:
        return (("unpermute_rope", heads),) if self.spec.interleaved else ()

    def _linear(
        self, out: str, x: str, hf: str, gguf: str, rows: int, *prep: tuple[Scalar, ...], biased: bool = False
    ) -> str:
        """f32 [T, rows] of x. prep: of the matrix and of its bias alike. biased: where the configuration says so."""
        names = f"model.layers.{self.layer}.self_attn.{hf}", f"blk.{self.layer}.{gguf}"
        width = self.b.at(x).shape[-1]
        if not isinstance(width, int):
            raise ConfigError(f"{x} has no fixed width")

        def weight(name: str, shape: tuple[int, ...], end: str) -> str:
            return self.b.weight(name, shape, hf=f"{names[0]}.{end}", gguf=f"{names[1]}.{end}", prep=prep)

        matrix = weight(f"{self.layer}.w{out}", (rows, width), "weight")
        bias = weight(f"{self.layer}.b{out}", (rows,), "bias") if biased and self.config.attention_bias else None
        return self.b.linear(f"{self.layer}.{out}", x, matrix, bias)

    def _norm(self, out: str, x: str, hf: str, gguf: str, width: int) -> str:
        names = f"model.layers.{self.layer}.self_attn.{hf}.weight", f"blk.{self.layer}.{gguf}.weight"
        weight = self.b.weight(f"{self.layer}.{out}_norm", (width,), hf=names[0], gguf=names[1])
        eps = self.config.rms_eps if self.switches.latent_eps is None else self.switches.latent_eps
        return self.b.norm(f"{self.layer}.{out}", x, weight, eps=eps, dtype="act" if out == "qn" else "f32")


def _mlp(b: Builder, config: ModelConfig, switches: Switches, layer: int, h: str) -> str:
    """f32 [T, D] of h [T, D]: one MLP for all rows, or a mixture and experts that every row goes to."""
    spec, act = config.experts, config.activation or "silu"
    if spec is None or not spec.sparse[layer]:
        return parts.mlp(b, layer, h, hidden=config.hidden_size, width=config.intermediate_size, act=act)
    biased = (spec.scoring or switches.scoring) == "sigmoid"
    limited = spec.method != "greedy"
    routing = Routing(
        k=spec.k,
        rule=spec.scoring or switches.scoring,
        normalize=biased if spec.normalize is None else spec.normalize,
        scale=spec.scale or 1.0,
        groups=(spec.groups or 1) if limited else 1,
        top_groups=(spec.top_groups or 1) if limited else 1,
        group_score="pairs" if biased else "best",
    )
    mixture = Mixture(
        hidden=config.hidden_size,
        spec=spec,
        routing=routing,
        act=act,
        choice_bias=biased,
        shared="plain" if spec.shared_width else "none",
        shared_name="shared_experts",
        gguf=config.source == "gguf",
    )
    return mixture.write(b, layer, h)
