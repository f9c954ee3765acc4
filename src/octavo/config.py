"""What the engine is told: EngineConfig, frozen after birth. What a checkpoint says stands in model_config.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from octavo.errors import UsageError

MAX_COUNT = 2**30  # stays far inside an int32
MAX_THREADS = 1024
MAX_PLANS = 64  # each has a header of its own
KVDType = Literal["auto", "bf16", "i8"]
COUNTS = (
    "threads",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_logit_rows",
    "max_model_len",
    "num_blocks",
    "block_tokens",
    "plans_outstanding",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every field is also a keyword of LLM(), a flag, an OCTAVO_ variable and a key of --config. None: chosen at load.

    kv_dtype: how keys and values are stored; auto: bf16, or what the reference executor computes in.

    kv_memory in bytes. num_blocks overrides kv_memory. plans_outstanding: steps planned before the first commits.
    packed_cache: on keeps the native executor's packed weights on disk; the next load maps them.
    Raises UsageError that names a limit out of its range.
    """

    model: str
    executor: Literal["native", "reference"] = "native"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_dtype: KVDType = "auto"
    threads: int | None = None
    isa: str | None = None
    activations: Literal["auto", "bf16", "int", "i8g32"] = "auto"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_logit_rows: int = 256
    max_model_len: int | None = None
    kv_memory: int | None = None
    num_blocks: int | None = None
    block_tokens: int = 16
    enable_prefix_caching: bool = True
    plans_outstanding: int = 1
    packed_cache: Literal["off", "on"] = "off"
    served_model_name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.enable_prefix_caching, bool):
            wrong = self.enable_prefix_caching
            raise UsageError(
                f"enable_prefix_caching must be true or false, not {wrong!r}", param="enable_prefix_caching"
            )
        if self.kv_dtype not in get_args(KVDType):
            raise UsageError(f"kv_dtype {self.kv_dtype!r} is not one of auto, bf16, i8", param="kv_dtype")
        if self.packed_cache not in ("off", "on"):
            raise UsageError(f"packed_cache {self.packed_cache!r} is not one of off, on", param="packed_cache")
        for name in (*COUNTS, "kv_memory"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{name} must be a whole number, not {value!r}", param=name)
            if value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}", param=name)
            most = {"threads": MAX_THREADS, "plans_outstanding": MAX_PLANS}.get(name, MAX_COUNT)
            if value > most and name in COUNTS:
                raise UsageError(f"{name} must be at most {most}, not {value}", param=name)
