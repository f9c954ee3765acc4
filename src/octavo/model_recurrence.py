"""What a checkpoint states about its recurrent layers: which ones they are, their heads, their convolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError
from octavo.fields import Fields, unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceSpec:
    """Layers of the gated delta rule. layers: per layer, whether it is one; the others attend. taps: of the convolution
    before it. Each key head serves heads / key_heads value heads."""

    layers: tuple[bool, ...]
    key_heads: int
    key_dim: int
    heads: int
    value_dim: int
    taps: int


def recurrence_from_mapping(mapping: Mapping[str, Any], layers: int) -> RecurrenceSpec | None:
    """Of config.json. None where it states no such heads. Raises ConfigError."""
    fields = Fields(mapping)
    kinds = fields.get("layer_types")
    if fields.get("linear_num_value_heads") is None:
        if isinstance(kinds, (list, tuple)) and "linear_attention" in kinds:
            raise unsupported("layer_types: 'linear_attention' without its heads", "layer_types")
        return None
    if kinds is None:
        every = fields.size("full_attention_interval", 4)
        recurrent = tuple((layer + 1) % every != 0 for layer in range(layers))
    elif isinstance(kinds, (list, tuple)) and len(kinds) >= layers:
        recurrent = tuple(kind == "linear_attention" for kind in kinds[:layers])
    else:
        raise fields.bad("layer_types", f"a list of {layers} names")
    spec = RecurrenceSpec(
        layers=recurrent,
        key_heads=fields.size("linear_num_key_heads"),
        key_dim=fields.size("linear_key_head_dim"),
        heads=fields.size("linear_num_value_heads"),
        value_dim=fields.size("linear_value_head_dim"),
        taps=fields.size("linear_conv_kernel_dim"),
    )
    return _checked(fields, spec, "linear_num_value_heads", "linear_num_key_heads", "linear_conv_kernel_dim")


def recurrence_from_gguf(fields: Fields, layers: int) -> RecurrenceSpec | None:
    """Of GGUF metadata. None where it states no such heads. Raises ConfigError."""
    if fields.get("ssm.time_step_rank") is None:
        return None
    every, heads, width = (
        fields.size("full_attention_interval", 4),
        fields.size("ssm.time_step_rank"),
        fields.size("ssm.inner_size"),
    )
    if width % heads:
        raise fields.bad("ssm.inner_size", f"a multiple of ssm.time_step_rank {heads}")
    spec = RecurrenceSpec(
        layers=tuple((layer + 1) % every != 0 for layer in range(layers)),
        key_heads=fields.size("ssm.group_count"),
        key_dim=fields.size("ssm.state_size"),
        heads=heads,
        value_dim=width // heads,
        taps=fields.size("ssm.conv_kernel"),
    )
    return _checked(fields, spec, "ssm.time_step_rank", "ssm.group_count", "ssm.conv_kernel")


def _checked(fields: Fields, spec: RecurrenceSpec, heads: str, key_heads: str, taps: str) -> RecurrenceSpec:
    """heads, key_heads, taps: what the format calls them."""
    if spec.heads % spec.key_heads:
        raise ConfigError(f"{heads} {spec.heads} is no multiple of {key_heads} {spec.key_heads}", param=heads)
    if not 2 <= spec.taps <= 8:
        raise fields.bad(taps, "an integer from 2 to 8")
    return spec
