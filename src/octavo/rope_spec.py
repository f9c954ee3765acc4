"""Rotary embeddings as a checkpoint states them, in either format: those of layers that slide may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError
from octavo.fields import Fields, unsupported

_TYPES = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
# Names of layer kinds under which rope_parameters may be nested.
_FULL, _SLIDING = "full_attention", "sliding_attention"


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


def ropes_from_mapping(mapping: Mapping[str, Any], max_position: int) -> tuple[RopeSpec, RopeSpec | None]:
    """(of the layers that see everything, of those that slide; None: nothing of their own is stated).

    config.json of the generation with rope_scaling, or with rope_parameters, which may be nested by kind of layer.
    """
    stated: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = mapping.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be an object", param=name)
        stated.update(value or {})
    nested = {name: value for name, value in stated.items() if isinstance(value, Mapping)}
    for name in nested:
        if name not in (_FULL, _SLIDING) or len(nested) != len(stated):
            raise unsupported(f"rope_parameters of {name}: not supported", "rope_parameters")
    outside = {name: mapping.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    local = nested.get(_SLIDING)
    if local is None and mapping.get("rope_local_base_freq") is not None:
        local = {"rope_theta": Fields(mapping).number("rope_local_base_freq")}
    whole = _from_stated({**outside, **(nested.get(_FULL, {}) if nested else stated)}, mapping, max_position)
    return whole, None if local is None else _from_stated(dict(local), mapping, max_position)


def _from_stated(stated: dict[str, Any], mapping: Mapping[str, Any], max_position: int) -> RopeSpec:
    kind = stated.get("rope_type", stated.get("type", "default")) or "default"
    if kind not in _TYPES:
        raise unsupported(f"rope_type {kind!r} is not one of {', '.join(_TYPES)}", "rope_type")
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


def ropes_from_gguf(
    fields: Fields, head_dim: int, max_position: int, freq_factors: tuple[float, ...]
) -> tuple[RopeSpec, RopeSpec | None]:
    """As `ropes_from_mapping`, from GGUF metadata. Scaling is of the layers that do not slide."""
    base = fields.optional("rope.freq_base_swa")
    return _from_gguf(fields, head_dim, max_position, freq_factors), None if base is None else RopeSpec(theta=base)


def _from_gguf(fields: Fields, head_dim: int, max_position: int, freq_factors: tuple[float, ...]) -> RopeSpec:
    kind = fields.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear", "yarn"):
        raise unsupported(f"rope.scaling.type {kind!r} is not supported", "rope.scaling.type")
    rotary = fields.size("rope.dimension_count", head_dim)
    # A tenth of mscale_all_dim; files that state it were trained with an mscale that equals it.
    logarithm = fields.optional("rope.scaling.yarn_log_multiplier")
    mscale = None if logarithm is None else 10 * logarithm
    return RopeSpec(
        type="default" if kind == "none" else kind,
        theta=fields.optional("rope.freq_base"),
        factor=None if kind == "none" else fields.number("rope.scaling.factor"),
        original_max_position=fields.size("rope.scaling.original_context_length", max_position),
        beta_fast=fields.optional("rope.scaling.yarn_beta_fast"),
        beta_slow=fields.optional("rope.scaling.yarn_beta_slow"),
        mscale=mscale,
        mscale_all_dim=mscale,
        rotary_fraction=rotary / head_dim,
        freq_factors=freq_factors,
    )
