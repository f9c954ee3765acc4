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

_IGNORED_FIELDS = ("auto_map", "trust_remote_code", "_attn_implementation_internal", "_attn_implementation")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding as the checkpoint states it; models/rope.py turns it into frequencies. None: not stated.

    factor divides frequencies; original_max_position is the trained length that llama3, yarn and longrope refer to.
    freq_factors: divisors per frequency that stand in the file itself (GGUF rope_freqs.weight).
    """

    type: str = "default"
    theta: float | None = None
    factor: float | None = None
    original_max_position: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    rotary_fraction: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a checkpoint states about its model, checked. None: the file is silent and the family's own rule holds.

    architecture: the class of config.json or general.architecture of a GGUF file; source says which.
    windows: per layer, keys that a query sees with itself (0: all). rope_layers: per layer, whether it rotates.
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
    activation: str = "silu"
    tie_embeddings: bool | None = None
    attention_bias: bool | None = None
    rope_layers: tuple[bool, ...] | None = None
    windows: tuple[int, ...] | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json, of the generation with torch_dtype and rope_scaling or with dtype and rope_parameters.

        Raises ConfigError that names the field; its code is `unsupported` for a stated feature that this build lacks.
        """
        fields = Fields(mapping)
        _refuse(mapping)
        layers = fields.size("num_hidden_layers")
        heads = fields.size("num_attention_heads")
        hidden = fields.size("hidden_size")
        max_position = fields.size("max_position_embeddings", 2048)
        rope = _rope_from_mapping(mapping, max_position)
        return _checked(
            cls(
                architecture=_architecture(mapping),
                source="hf",
                hidden_size=hidden,
                num_layers=layers,
                num_heads=heads,
                num_kv_heads=fields.size("num_key_value_heads", heads),
                head_dim=fields.size("head_dim", _share(hidden, heads)),
                intermediate_size=fields.size("intermediate_size"),
                vocab_size=fields.size("vocab_size"),
                max_position=_longest(max_position, rope),
                rms_eps=fields.number("rms_norm_eps", 1e-6),
                rope=rope,
                activation=_activation(mapping),
                tie_embeddings=fields.flag("tie_word_embeddings"),
                attention_bias=fields.flag("attention_bias"),
                rope_layers=_rope_layers(fields, layers),
                windows=_windows(fields, layers),
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
        head_dim = fields.size("attention.key_length", _share(hidden, heads))
        if "rope_freqs.weight" in tensors and not freq_factors:
            raise ConfigError("rope_freqs.weight: its values are needed to read this file", param="rope_freqs.weight")
        for name, harmless in _GGUF_EXTRAS.items():
            if fields.get(name) not in (None, harmless):
                raise unsupported(f"{arch}.{name}: not supported", name)
        max_position = fields.size("context_length")
        rope = _rope_from_gguf(fields, head_dim, max_position, tuple(float(value) for value in freq_factors or ()))
        embedding = tensors.get("token_embd.weight", ())
        tokens = metadata.get("tokenizer.ggml.tokens")
        rows = embedding[0] if embedding else len(tokens) if tokens is not None else None
        return _checked(
            cls(
                architecture=arch,
                source="gguf",
                hidden_size=hidden,
                num_layers=fields.size("block_count"),
                num_heads=heads,
                num_kv_heads=fields.size("attention.head_count_kv", heads),
                head_dim=head_dim,
                intermediate_size=fields.size("feed_forward_length"),
                vocab_size=fields.size("vocab_size", rows),
                max_position=_longest(max_position, rope),
                rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
                rope=rope,
                tie_embeddings="output.weight" not in tensors,
                attention_bias="blk.0.attn_q.bias" in tensors,
                eos_ids=tuple(
                    dict.fromkeys(
                        Fields(metadata).ids("tokenizer.ggml.eos_token_id")
                        + Fields(metadata).ids("tokenizer.ggml.eot_token_id")
                    )
                ),
                bos_id=next(iter(Fields(metadata).ids("tokenizer.ggml.bos_token_id")), None),
            )
        )


# Keys that would change the result and that nothing here reads, with the value that changes nothing.
_GGUF_EXTRAS = {
    "attention.sliding_window": 0,
    "expert_count": 0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
}


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
    for name in ("quantization_config", "mlp_bias"):
        if mapping.get(name):
            raise unsupported(f"{name}: not supported", name)


def _activation(mapping: Mapping[str, Any]) -> str:
    name = mapping.get("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise unsupported(f"hidden_act {name!r} is not one of {', '.join(_ACTIVATIONS)}", "hidden_act")
    return _ACTIVATIONS[name]


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
        if kind not in ("full_attention", "sliding_attention"):
            raise unsupported(f"layer_types: {kind!r} is not supported", "layer_types")
    used = fields.flag("use_sliding_window")
    if used is None and fields.get("max_window_layers") is not None:
        used = False
    if used is False or (kinds is not None and "sliding_attention" not in kinds[:layers]):
        return (0,) * layers
    if fields.get("sliding_window") is None:
        return (0,) * layers if "sliding_window" in fields.mapping else None
    window = fields.size("sliding_window")
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds[:layers])
    first = fields.integer("max_window_layers", 0)
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _rope_from_mapping(mapping: Mapping[str, Any], max_position: int) -> RopeSpec:
    stated: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = mapping.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be an object", param=name)
        stated.update(value or {})
    if any(isinstance(value, Mapping) for value in stated.values()):
        raise unsupported("rope_parameters per layer type are not supported", "rope_parameters")
    for name in ("rope_theta", "partial_rotary_factor"):
        stated.setdefault(name, mapping.get(name))
    kind = stated.get("rope_type", stated.get("type", "default")) or "default"
    if kind not in _ROPE_TYPES:
        raise unsupported(f"rope_type {kind!r} is not one of {', '.join(_ROPE_TYPES)}", "rope_type")
    fields = Fields(stated)
    if kind == "llama3":
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            fields.number(name)
    elif kind in ("linear", "dynamic"):
        fields.number("factor")
    original = mapping.get("original_max_position_embeddings")
    truncate = fields.flag("truncate")
    return RopeSpec(
        type=kind,
        theta=fields.optional("rope_theta"),
        factor=fields.optional("factor"),
        original_max_position=fields.integer("original_max_position_embeddings", original or max_position),
        low_freq_factor=fields.optional("low_freq_factor"),
        high_freq_factor=fields.optional("high_freq_factor"),
        beta_fast=fields.optional("beta_fast"),
        beta_slow=fields.optional("beta_slow"),
        mscale=fields.optional("mscale"),
        mscale_all_dim=fields.optional("mscale_all_dim"),
        attention_factor=fields.optional("attention_factor"),
        truncate=truncate is not False,
        rotary_fraction=fields.number("partial_rotary_factor", 1.0),
        short_factor=fields.numbers("short_factor"),
        long_factor=fields.numbers("long_factor"),
    )


def _rope_from_gguf(fields: Fields, head_dim: int, max_position: int, freq_factors: tuple[float, ...]) -> RopeSpec:
    kind = fields.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear", "yarn"):
        raise unsupported(f"rope.scaling.type {kind!r} is not supported", "rope.scaling.type")
    rotary = fields.size("rope.dimension_count", head_dim)
    return RopeSpec(
        type="default" if kind == "none" else kind,
        theta=fields.optional("rope.freq_base"),
        factor=None if kind == "none" else fields.number("rope.scaling.factor"),
        original_max_position=fields.size("rope.scaling.original_context_length", max_position),
        beta_fast=fields.optional("rope.scaling.yarn_beta_fast"),
        beta_slow=fields.optional("rope.scaling.yarn_beta_slow"),
        rotary_fraction=rotary / head_dim,
        freq_factors=freq_factors,
    )


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
