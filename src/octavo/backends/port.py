"""The port between the runner and a machine: open programs with weights, run steps, look at exports.

An executor is chosen by name in backends/__init__.py. Bitwise claims hold per Session.numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo.config import KVDType
from octavo.program.ir import Program
from octavo.types import Numerics
from octavo.weights.kinds import Tensor
from octavo.weights.stored import OnDisk


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that a session allocates for. num_blocks counts the null block 0. Tokens, rows: the most in one step.
    num_snapshots: of recurrent state, numbered from 1."""

    max_tokens: int
    max_rows: int
    max_seqs: int
    max_model_len: int
    num_blocks: int
    block_tokens: int
    num_snapshots: int = 0

    @property
    def max_blocks(self) -> int:
        """Entries of one slot's block table."""
        return -(-self.max_model_len // self.block_tokens)


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Recurrent state in bytes: of a request's slot, drafts that wait for a replay counted, and of a snapshot."""

    slot: int
    snapshot: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a session may keep its weights as it holds them, for the next one. content: names them and their order."""

    folder: Path
    content: bytes


# Weight name -> its tensor, prepared, or where it stands in its file. Once a weight, in the program's order; the
# session repacks it before it asks for the next one, and drops it.
WeightStream = Iterator[tuple[str, Tensor | OnDisk]]


class Session(Protocol):
    """Programs opened over one set of weights, one thread pool and one set of caches and block tables."""

    numerics: Numerics
    notes: tuple[str, ...]  # one line each for the user, said once at load

    def run(self, program: str, header: Any) -> None:
        """Runs one step. `header`: what HeaderWriter wrote, or numpy int32, contiguous, laid out as program/header.py
        says."""

    def view(self, name: str) -> Any:
        """An export of the last run as a numpy float32 array [rows, width]; valid until the next run."""

    def logits(self, name: str) -> Any:
        """The same export as the sampler reads it: an array, or a handle that stays valid from run to run."""

    def cache_bytes(self) -> Any:
        """All cache memory as one writable uint8 numpy array [num_blocks, bytes]: tests poison blocks through it."""

    def close(self) -> None: ...


class Executor(Protocol):
    name: str

    def lower(
        self,
        program: Program,
        kinds: Mapping[str, str],
        *,
        activations: str = "auto",
        kv_dtype: KVDType = "auto",
        isa: str | None = None,
    ) -> Program:
        """The program as this executor runs it. `kinds`: weight name -> kind in memory. kv_dtype: how keys and values
        are stored; auto is what the executor computes in.

        activations: auto | bf16 | int | i8g32 (program/lower.py); auto is the executor's own choice, by the
        instruction-set class that `open` would take.
        """

    def block_bytes(self, programs: Mapping[str, Program], block_tokens: int) -> int:
        """Bytes of one KV block over all groups and programs, padding included."""

    def state_bytes(self, programs: Mapping[str, Program]) -> StateBytes:
        """Of recurrent state, over all programs; (0, 0) without any."""

    def open(
        self,
        programs: Mapping[str, Program],
        weights: Callable[[], WeightStream],
        limits: Limits,
        *,
        threads: int,
        isa: str | None = None,
        kept: Kept | None = None,
    ) -> Session: ...
