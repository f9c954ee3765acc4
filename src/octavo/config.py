"""What the engine is told: EngineConfig, frozen after birth. What a checkpoint says stands in model_config.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from octavo.errors import UsageError

MAX_COUNT = 2**30  # stays far inside an int32
MAX_THREADS = 1024
MAX_PLANS = 64  # each has a header of its own
KVDType = Literal["auto", "bf16", "i8"]
ActivationKind = Literal["auto", "bf16", "int", "int15", "i8g32", "i8row", "i8x"]
VerifyRule = Literal["equal", "residual", "block", "typical"]
CHOICES = {
    "kv_dtype": get_args(KVDType),
    "activations": get_args(ActivationKind),
    "packed_cache": ("off", "on"),
    "verify": get_args(VerifyRule),
    "task": ("auto", "generate", "embed"),
    "pooling": ("auto", "last", "mean", "cls"),
}
SPECULATE = (
    "off",
    "ngram",
    "suffix",
    "auto",
    "mtp",
    "model:NAME",
    "head:PATH",
    "ngramlm:FILE",
)  # "kind:WHAT": of what, the user says
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
    activations: what linears over whole-numbered weights eat (docs/fidelity.md), natively.

    kv_memory in bytes. num_blocks overrides kv_memory. plans_outstanding: steps planned before the first commits.
    packed_cache: on keeps the native executor's packed weights on disk; the next load maps them.
    speculate: who proposes drafts, one of SPECULATE (docs/speculation.md); text never depends on it. auto: what stood
    in the text before, as far as it pays; nobody for the reference executor, and for models with recurrent state.
    verify: how drafts are accepted. equal: text is that of plain decoding; residual, block: its distribution is;
    typical: neither, more drafts are accepted than the model would say.
    journal: a file for every request, plan and result of the scheduler (policy/journal.py).
    task: auto embeds with encoders and generates with all others. pooling: which rows an embedding is made of; auto:
    what the checkpoint states, else the mean of an encoder's, the last of a decoder's. normalize: to length 1.
    Raises UsageError that names a limit out of its range.
    """

    model: str
    executor: Literal["native", "reference"] = "native"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_dtype: KVDType = "auto"
    threads: int | None = None
    isa: str | None = None
    activations: ActivationKind = "auto"
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
    journal: str | None = None
    speculate: str = "auto"
    verify: VerifyRule = "equal"
    served_model_name: str | None = None
    task: Literal["auto", "generate", "embed"] = "auto"
    pooling: Literal["auto", "last", "mean", "cls"] = "auto"
    normalize: bool = True

    def __post_init__(self) -> None:
        for name in ("enable_prefix_caching", "normalize"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be true or false, not {value!r}", param=name)
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise UsageError(f"{name} {value!r} is not one of {', '.join(known)}", param=name)
        if not speculates(self.speculate):
            raise UsageError(f"speculate {self.speculate!r} is not one of {', '.join(SPECULATE)}", param="speculate")
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


def speculates(name: object) -> bool:
    """Whether it names a drafter: a kind alone, or one with what it wants to be told."""
    kind, colon, argument = name.partition(":") if isinstance(name, str) else ("", "", "")
    wants = {known.partition(":")[0]: ":" in known for known in SPECULATE}
    return kind in wants and wants[kind] == bool(colon) == bool(argument)
