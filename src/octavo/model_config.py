"""What a checkpoint says about its model: ModelConfig from config.json or from GGUF metadata, checked field by field.

Reads facts only. What a silent field means is the family's business (models/registry.py), and so are frequencies
(models/rope.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.errors import ConfigError
from octavo.fields import Fields, unsupported
from octavo.model_experts import ExpertSpec, experts_from_gguf, experts_from_mapping
from octavo.model_latent import LatentSpec, latent_from_gguf, latent_from_mapping
from octavo.model_recurrence import RecurrenceSpec, recurrence_from_gguf, recurrence_from_mapping
from octavo.rope_spec import RopeSpec, ropes_from_gguf, ropes_from_mapping

_IGNORED_FIELDS = ("auto_map", "trust_remote_code", "_attn_implementation_internal", "_attn_implementation")
# Fields that change the result where they are true, and that nothing here reads.
_REFUSED = (
    *("use_bidirectional_attention", "add_cross_attention", "is_decoder"),
    *("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
)
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a checkpoint states about its model, checked. None: the file is silent and the family's own rule holds.

    architecture: the class of config.json or general.architecture of a GGUF file; source says which.
    windows: per layer, keys that a query sees with itself (0: all), where the file says which layers slide. window: of
    those that do, where it states a size alone (0: none slides). window_period n: every n-th layer does not slide.
    rope_layers: per layer, whether it rotates. local_rope: of layers that slide, where it is not `rope`.
    query_scalar: attention scores are divided by its square root. caps: c in c tanh(x / c), 0 for none.
    dtype: of the weights, as config.json names it; quantization: quant_method, where it states one.
    latent: where it is stated there is one KV head, and head_dim is what rotates of a head. draft_layers: behind the
    others, of modules that predict further tokens.
    """

    architecture: str
    source: Literal["hf", "gguf"]
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rms_eps: float
    rope: RopeSpec
    local_rope: RopeSpec | None = None
    experts: ExpertSpec | None = None
    recurrence: RecurrenceSpec | None = None
    activation: str | None = None
    tie_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    rope_layers: tuple[bool, ...] | None = None
    windows: tuple[int, ...] | None = None
    window: int | None = None
    window_period: int | None = None
    query_scalar: float | None = None
    attention_cap: float | None = None
    final_cap: float | None = None
    dtype: str | None = None
    quantization: str | None = None
    latent: LatentSpec | None = None
    draft_layers: int = 0
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json, of the generation with torch_dtype and rope_scaling or with dtype and rope_parameters.

        Raises ConfigError that names the field; its code is `unsupported` for a stated feature that this build lacks.
        """
        mapping = _text_model(mapping)
        fields = Fields(mapping)
        _refuse(mapping)
        layers = fields.size(fields.called("num_hidden_layers", "n_layer"))
        heads = fields.size(fields.called("num_attention_heads", "n_head"))
        hidden = fields.size(fields.called("hidden_size", "n_embd"))
        max_position = fields.size(fields.called("max_position_embeddings", "n_positions"), 2048)
        inner = "n_inner" if "n_inner" in mapping else "intermediate_size"
        rope, local_rope = ropes_from_mapping(mapping, max_position)
        latent = latent_from_mapping(fields, layers)
        return _checked(
            cls(
                architecture=_architecture(mapping),
                source="hf",
                hidden_size=hidden,
                num_layers=layers,
                num_heads=heads,
                num_kv_heads=1 if latent else fields.size("num_key_value_heads", heads),
                head_dim=latent.rope_dim if latent else fields.size("head_dim", _share(hidden, heads)),
                intermediate_size=fields.size(inner, 4 * hidden if inner == "n_inner" else None),
                vocab_size=fields.size("vocab_size"),
                max_position=_longest(max_position, rope),
                rms_eps=fields.number(fields.called("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"), 1e-6),
                rope=rope,
                local_rope=local_rope,
                experts=experts_from_mapping(mapping, layers),
                recurrence=recurrence_from_mapping(mapping, layers),
                activation=_activation(mapping),
                tie_embeddings=fields.flag("tie_word_embeddings"),
                attention_bias=fields.flag(fields.called("attention_bias", "qkv_bias")),
                mlp_bias=fields.flag("mlp_bias"),
                rope_layers=_rope_layers(fields, layers),
                windows=None if latent else _windows(fields, layers),
                window=_window(fields, "sliding_window"),
                window_period=_period(fields),
                query_scalar=fields.optional("query_pre_attn_scalar"),
                attention_cap=_cap(fields, "attn_logit_softcapping"),
                final_cap=_cap(fields, "final_logit_softcapping"),
                quantization=_quantization(mapping),
                dtype=next((str(mapping[name]) for name in ("dtype", "torch_dtype") if mapping.get(name)), None),
                latent=latent,
                draft_layers=fields.integer("num_nextn_predict_layers", 0),
                eos_ids=fields.ids("eos_token_id"),
                bos_id=next(iter(fields.ids("bos_token_id")), None),
                warnings=tuple(f"{name} is ignored: a checkpoint runs no code" for name in _ignored(mapping)),
            )
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, tuple[int, ...]],
        freq_factors: Sequence[float] | None = None,
    ) -> ModelConfig:
        """Reads GGUF metadata, with the names and shapes of the tensors: they say what is tied and what is biased.

        freq_factors: the values of the tensor rope_freqs.weight, where the file has it.
        """
        arch = metadata.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            raise ConfigError("general.architecture is missing", param="general.architecture")
        fields = Fields(metadata, arch)
        hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
        latent = latent_from_gguf(fields, tensors)
        head_dim = latent.rope_dim if latent else fields.size("attention.key_length", _share(hidden, heads))
        if "rope_freqs.weight" in tensors and not freq_factors:
            raise ConfigError("rope_freqs.weight: its values are needed to read this file", param="rope_freqs.weight")
        for name, harmless in _GGUF_EXTRAS.items():
            if fields.get(name) not in (None, harmless):
                raise unsupported(f"{arch}.{name}: not supported", name)
        max_position = fields.size("context_length")
        factors = tuple(float(value) for value in freq_factors or ())
        rope, local_rope = ropes_from_gguf(fields, head_dim, max_position, factors)
        layers, drafts = _gguf_layers(fields)
        return _checked(
            cls(
                architecture=arch,
                source="gguf",
                hidden_size=hidden,
                num_layers=layers,
                draft_layers=drafts,
                num_heads=heads,
                num_kv_heads=1 if latent else fields.size("attention.head_count_kv", heads),
                head_dim=head_dim,
                latent=latent,
                intermediate_size=fields.size("feed_forward_length"),
                vocab_size=fields.size("vocab_size", _rows(metadata, tensors)),
                max_position=_longest(max_position, rope),
                rms_eps=fields.number(
                    fields.called("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
                ),
                rope=rope,
                local_rope=local_rope,
                experts=experts_from_gguf(fields, tensors, layers),
                recurrence=recurrence_from_gguf(fields, layers),
                tie_embeddings="output.weight" not in tensors,
                attention_bias=bool({"blk.0.attn_q.bias", "blk.0.attn_kv_a_mqa.bias"} & tensors.keys()),
                mlp_bias="blk.0.ffn_gate.bias" in tensors,
                windows=_windows_from_gguf(fields),
                window=_window(fields, "attention.sliding_window"),
                window_period=_gguf_period(fields),
                attention_cap=_cap(fields, "attn_logit_softcapping"),
                final_cap=_cap(fields, "final_logit_softcapping"),
                eos_ids=_ends(metadata),
                bos_id=next(iter(Fields(metadata).ids("tokenizer.ggml.bos_token_id")), None),
            )
        )


def _rows(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> int | None:
    """Of the embedding, or as many as there are tokens."""
    embedding, tokens = tensors.get("token_embd.weight", ()), metadata.get("tokenizer.ggml.tokens")
    return embedding[0] if embedding else len(tokens) if tokens is not None else None


def _gguf_layers(fields: Fields) -> tuple[int, int]:
    """(layers, draft layers behind them)"""
    blocks, drafts = fields.size("block_count"), fields.integer("nextn_predict_layers", 0)
    if not 0 <= drafts < blocks:
        raise fields.bad("nextn_predict_layers", f"less than block_count {blocks}")
    return blocks - drafts, drafts


# Keys that would change the result and that nothing here reads, with the value that changes nothing.
_GGUF_EXTRAS = {
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
}


# What the text model of an architecture with several parts has where its part of the file is silent.
_TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    "Gemma3ForConditionalGeneration": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "query_pre_attn_scalar": 256,
        "sliding_window_pattern": 6,
    },
}


def _text_model(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's own fields where they stand apart, with what is said of the whole: its class, its end, its
    type."""
    text = mapping.get("text_config")
    if not isinstance(text, Mapping):
        return mapping
    name = _architecture(mapping)
    whole = ("eos_token_id", "bos_token_id", "tie_word_embeddings", "dtype", "torch_dtype", "quantization_config")
    shared = {field: mapping[field] for field in whole if mapping.get(field) is not None}
    return {**_TEXT_DEFAULTS.get(name, {}), **text, **shared, "architectures": [name]}


def _share(hidden: int, heads: int) -> int | None:
    return hidden // heads if hidden % heads == 0 else None


def _architecture(mapping: Mapping[str, Any]) -> str:
    names = mapping.get("architectures")
    if not isinstance(names, (list, tuple)) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError("architectures must name one class", param="architectures")
    return names[0]


def _ignored(mapping: Mapping[str, Any]) -> list[str]:
    return [name for name in _IGNORED_FIELDS if mapping.get(name)]


def _refuse(mapping: Mapping[str, Any]) -> None:
    for name in _REFUSED:
        if mapping.get(name):
            raise unsupported(f"{name}: not supported", name)
    if mapping.get("scale_attn_weights") is False:
        raise unsupported("scale_attn_weights false: not supported", "scale_attn_weights")
    if mapping.get("position_embedding_type", "absolute") not in ("absolute", None):
        raise unsupported("position_embedding_type: only absolute is supported", "position_embedding_type")


def _quantization(mapping: Mapping[str, Any]) -> str | None:
    stated = mapping.get("quantization_config")
    return str(stated.get("quant_method")) if isinstance(stated, Mapping) else None


def _activation(mapping: Mapping[str, Any]) -> str | None:
    field = Fields(mapping).called("hidden_act", "hidden_activation", "activation_function")
    name = mapping.get(field)
    if name is not None and name not in _ACTIVATIONS:
        raise unsupported(f"{field} {name!r} is not one of {', '.join(_ACTIVATIONS)}", field)
    return None if name is None else _ACTIVATIONS[name]


def _cap(fields: Fields, name: str) -> float | None:
    """0 where a file says that there is none."""
    stated = fields.prefix + name in fields.mapping
    return (0.0 if stated else None) if fields.get(name) in (None, 0) else fields.number(name)


def _window(fields: Fields, name: str) -> int | None:
    """0 where a file says that there is none."""
    stated = fields.prefix + name in fields.mapping
    return (0 if stated else None) if fields.get(name) in (None, 0) else fields.size(name)


def _period(fields: Fields) -> int | None:
    name = fields.called("sliding_window_pattern", "_sliding_window_pattern")
    return None if fields.get(name) is None else fields.size(name)


def _gguf_period(fields: Fields) -> int | None:
    """The pattern as a number; 0 lets every layer slide, as a period beyond the last layer does."""
    stated = fields.get("attention.sliding_window_pattern")
    if stated is None or isinstance(stated, (list, tuple)):
        return None
    return fields.integer("attention.sliding_window_pattern") or 2**31 - 1


def _windows_from_gguf(fields: Fields) -> tuple[int, ...] | None:
    """The pattern as a list with an entry a layer: true where it slides."""
    kinds, layers = fields.get("attention.sliding_window_pattern"), fields.size("block_count")
    if not isinstance(kinds, (list, tuple)):
        return None
    if len(kinds) < layers or any(kind not in (0, 1) for kind in kinds):
        raise fields.bad("attention.sliding_window_pattern", f"a list of {layers} flags")
    window = fields.size("attention.sliding_window")
    return tuple(window if kind else 0 for kind in kinds[:layers])


def _ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    fields = Fields(metadata)
    return tuple(dict.fromkeys(fields.ids("tokenizer.ggml.eos_token_id") + fields.ids("tokenizer.ggml.eot_token_id")))


def _rope_layers(fields: Fields, layers: int) -> tuple[bool, ...] | None:
    """no_rope_layers holds 1 where a layer does rotate."""
    stated = fields.get("no_rope_layers")
    if stated is None:
        interval = fields.get("no_rope_layer_interval")
        if interval is None:
            return None
        step = fields.size("no_rope_layer_interval")
        return tuple((layer + 1) % step != 0 for layer in range(layers))
    if not isinstance(stated, (list, tuple)) or len(stated) < layers or any(entry not in (0, 1) for entry in stated):
        raise fields.bad("no_rope_layers", f"a list of {layers} zeros and ones")
    return tuple(bool(entry) for entry in stated[:layers])


def _windows(fields: Fields, layers: int) -> tuple[int, ...] | None:
    kinds = fields.get("layer_types")
    if kinds is not None and (not isinstance(kinds, (list, tuple)) or len(kinds) < layers):
        raise fields.bad("layer_types", f"a list of {layers} names")
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention", "linear_attention"):
            raise unsupported(f"layer_types: {kind!r} is not supported", "layer_types")
    used = fields.flag("use_sliding_window")
    if used is None and fields.get("max_window_layers") is not None:
        used = False
    if used is False or (kinds is not None and "sliding_attention" not in kinds[:layers]):
        return (0,) * layers
    first = fields.get("max_window_layers")
    if kinds is None and first is None:
        return None
    window = _window(fields, "sliding_window") or 0
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds[:layers])
    first = fields.integer("max_window_layers")
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _longest(max_position: int, rope: RopeSpec) -> int:
    """Positions served. A yarn file states either the scaled or the trained length: it is scaled at most once."""
    if rope.type == "yarn" and rope.factor and rope.original_max_position:
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position


def _checked(config: ModelConfig) -> ModelConfig:
    """Rules between fields."""
    if config.num_heads % config.num_kv_heads:
        raise ConfigError(
            f"num_key_value_heads {config.num_kv_heads} does not divide {config.num_heads} heads",
            param="num_key_value_heads",
        )
    rotary = config.head_dim * config.rope.rotary_fraction
    if config.rope.rotary_fraction > 1 or int(rotary) % 2:
        raise ConfigError(
            f"head_dim {config.head_dim} with rotary fraction {config.rope.rotary_fraction:g} gives no pairs to rotate",
            param="head_dim",
        )
    return config
