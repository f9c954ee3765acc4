"""Floor 0 data that every room shares: KV groups, numerics, the machine, the shape of a step, the vocabulary.

Plain frozen data and protocols; no torch, no numpy, no I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

# Width in bytes of one element of each storage type that a cache tensor may have.
DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One cache tensor of one program. `elements` is per token (full, window) or per sequence (state).

    scales: f32 scales beside them, of an i8 tensor: one per KV head (docs/program.md). tail: of state, elements that
    one draft leaves for a replay.
    """

    name: str
    elements: int
    dtype: str = "bf16"
    scales: int = 0
    tail: int = 0

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype] + self.scales * DTYPE_BYTES["f32"]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """A retention rule with one block table; every cache tensor hangs on a group.

    full: every token is kept. window: blocks wholly behind `computed - window` are freed while the request runs.
    state: constant size per sequence; `tail` draft rows can be replayed.
    """

    name: str
    rule: Literal["full", "window", "state"]
    window: int = 0
    tail: int = 0
    tensors: tuple[CacheTensor, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token adds (0 for `state`, whose size does not grow)."""
        return 0 if self.rule == "state" else sum(tensor.bytes for tensor in self.tensors)

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of a sequence whatever its length; drafts that wait for a replay not counted."""
        return sum(tensor.bytes for tensor in self.tensors) if self.rule == "state" else 0


def kv_storage(groups: Iterable[KVGroup]) -> str:
    """Storage types of all keys and values, for Numerics.kv: one name, or several joined by +."""
    paged = [group for group in groups if group.rule != "state"]
    return "+".join(sorted({tensor.dtype for group in paged for tensor in group.tensors})) or "none"


@dataclass(frozen=True, slots=True)
class Numerics:
    """What "bit for bit" is relative to. Part of every prefix key and of every result.

    weights: sorted kinds in use, e.g. ("bf16", "i8", "u4"); activations: "bf16" | "f32" | ...; kv: storage of K and V;
    isa: instruction-set class ("portable", "avx2", "avx512", "amx", or the torch device); version: of the kernels.
    """

    executor: str
    weights: tuple[str, ...]
    activations: str
    kv: str
    isa: str
    version: int

    @property
    def id(self) -> str:
        """Readable and exact, e.g. `native-1/u4+i8/bf16/kv-bf16/avx512`."""
        return f"{self.executor}-{self.version}/{'+'.join(self.weights)}/{self.activations}/kv-{self.kv}/{self.isa}"


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of the machine, read once at start (see `octavo doctor`). Sizes in bytes."""

    cores: int
    physical_cores: int
    isas: tuple[str, ...]
    memory_total: int
    memory_free: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the cost rules read: per request, rows computed this step and context before them; R logit rows in all."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    logit_rows: int

    @property
    def tokens(self) -> int:
        return sum(self.rows)

    @property
    def requests(self) -> int:
        return len(self.rows)

    @classmethod
    def decode(cls, batch: int, context: int) -> StepShape:
        """`batch` requests that each compute one token after `context` others."""
        return cls((1,) * batch, (context,) * batch, batch)

    @classmethod
    def prefill(cls, tokens: int) -> StepShape:
        return cls((tokens,), (0,), 1)


class Vocabulary(Protocol):
    """What grammars, samplers and detokenizers need to know of a tokenizer, and no more."""

    @property
    def size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for; empty for ids that stand for no text."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


def digest(*fields: bytes | str | int) -> bytes:
    """SHA-256 over tagged, length-prefixed fields: two different tuples never give the same input bytes."""
    h = hashlib.sha256()
    for field in fields:
        if isinstance(field, int):
            data, tag = field.to_bytes(16, "little", signed=True), b"i"
        elif isinstance(field, str):
            data, tag = field.encode(), b"s"
        else:
            data, tag = field, b"b"
        h.update(tag + len(data).to_bytes(8, "little") + data)
    return h.digest()
