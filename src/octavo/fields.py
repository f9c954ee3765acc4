"""Typed reads of what a checkpoint states: a mapping from outside, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import ConfigError

# The largest value that each size may have: beyond it the file is wrong, not large.
_LIMITS = {
    "hidden_size": 2**20,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 2**16,
    "num_key_value_heads": 2**16,
    "head_dim": 2**13,
    "intermediate_size": 2**24,
    "vocab_size": 2**24,
    "max_position_embeddings": 2**31 - 1,
}
# Other names of the same: of GGUF, and of an older generation of config.json.
_ALSO = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
}


def unsupported(message: str, field: str) -> ConfigError:
    """For a stated feature that would change the result and that no operator here computes."""
    return ConfigError(message, code="unsupported", param=field)


class Fields:
    """Typed reads of a mapping from outside; every error names the field as the file spells it."""

    def __init__(self, mapping: Mapping[str, Any], prefix: str = "") -> None:
        self.mapping = mapping
        self.prefix = f"{prefix}." if prefix else ""

    def get(self, name: str) -> Any:
        return self.mapping.get(self.prefix + name)

    def called(self, *names: str) -> str:
        """Of the names that files give one field, the one that is used here; the first when none is."""
        return next((name for name in names if self.prefix + name in self.mapping), names[0])

    def bad(self, name: str, want: str) -> ConfigError:
        full = self.prefix + name
        value = self.mapping.get(full, "missing")
        return ConfigError(f"{full} must be {want}, not {str(value)[:40]}", param=full)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(name, "an integer")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        most = _LIMITS.get(name, _LIMITS.get(_ALSO.get(name, ""), 2**31 - 1))
        value = self.integer(name, default)
        if not 1 <= value <= most:
            raise self.bad(name, f"an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise self.bad(name, "a finite positive number")
        return float(value)

    def optional(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            raise self.bad(name, "a list of numbers")
        return tuple(Fields({name: entry}).number(name) for entry in value)

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.bad(name, "true or false")
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.get(name)
        entries = () if value is None else value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(entry, bool) or not isinstance(entry, int) or entry < 0 for entry in entries):
            raise self.bad(name, "a token id or a list of them")
        return tuple(entries)
