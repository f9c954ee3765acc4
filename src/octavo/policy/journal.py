"""A journal of everything that a scheduler was told and what it planned, and the scheduler that keeps one.

A frame is its length (4 bytes, little endian) and one message in msgpack. The first says how the scheduler was made.
Fed the same messages, another one of that make plans the same steps, row for row (sim/replay.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from octavo.errors import BadFileError, MissingFileError
from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler
from octavo.policy.step import SchedulerLimits
from octavo.request import FinishReason, Request, StepPlan, StepResult, TokenDelta
from octavo.types import KVGroup

MOST = 256 << 20  # bytes of a frame


class Made(msgspec.Struct, tag=True, frozen=True):
    """num_blocks: of each pool, the null block counted."""

    limits: SchedulerLimits
    groups: tuple[KVGroup, ...]
    num_blocks: tuple[int, ...]
    block_tokens: int
    enable_prefix_caching: bool
    hit_backoff: int
    num_snapshots: int
    snapshot_every: int
    lookahead: int = 0

    def scheduler(self) -> Scheduler:
        ledger = KVLedger(
            self.groups,
            self.num_blocks,
            self.block_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            hit_backoff=self.hit_backoff,
            num_snapshots=self.num_snapshots,
            snapshot_every=self.snapshot_every,
            lookahead=self.lookahead,
        )
        return Scheduler(self.limits, ledger)


class Added(msgspec.Struct, tag=True, frozen=True):
    request: Request


class Aborted(msgspec.Struct, tag=True, frozen=True):
    request_id: str


class Finished(msgspec.Struct, tag=True, frozen=True):
    request_id: str
    at_token: int
    reason: FinishReason
    stop_reason: int | str | None


class Planned(msgspec.Struct, tag=True, frozen=True):
    """Also a plan that was empty."""

    now: float
    plan: StepPlan


class Committed(msgspec.Struct, tag=True, frozen=True):
    plan: StepPlan
    result: StepResult


Entry = Made | Added | Aborted | Finished | Planned | Committed
_encoder = msgspec.msgpack.Encoder()


class JournalScheduler(Scheduler):
    """Writes each call before it is made, and each plan. Raises OSError as the file does."""

    def __init__(self, limits: SchedulerLimits, ledger: KVLedger, path: Path, snapshot_every: int) -> None:
        super().__init__(limits, ledger)
        self._file = path.open("wb")
        self._write(
            Made(
                limits,
                ledger.all_groups,
                tuple(pool.num_blocks for pool in ledger.pools),
                ledger.block_tokens,
                ledger.enable_prefix_caching,
                ledger.hit_backoff,
                ledger.states.pool.usable if ledger.states is not None else 1,
                snapshot_every,
                ledger.lookahead,
            )
        )

    def _write(self, entry: Entry) -> None:
        data = _encoder.encode(entry)
        self._file.write(len(data).to_bytes(4, "little") + data)

    def add(self, request: Request) -> None:
        self._write(Added(request))
        super().add(request)

    def abort(self, request_id: str) -> TokenDelta | None:
        self._write(Aborted(request_id))
        return super().abort(request_id)

    def finish(
        self, request_id: str, at_token: int, reason: FinishReason = "stop", stop_reason: int | str | None = None
    ) -> TokenDelta | None:
        self._write(Finished(request_id, at_token, reason, stop_reason))
        return super().finish(request_id, at_token, reason, stop_reason)

    def schedule(self, now: float) -> StepPlan:
        plan = super().schedule(now)
        self._write(Planned(now, plan))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        self._write(Committed(plan, result))
        self._file.flush()
        return super().commit(plan, result)


def read(path: Path) -> Iterator[Entry]:
    """Raises MissingFileError, BadFileError. A last frame that was cut off ends the journal."""
    decoder = msgspec.msgpack.Decoder(Entry)
    try:
        with path.open("rb") as file:
            while len(head := file.read(4)) == 4:
                size = int.from_bytes(head, "little")
                if size > MOST:
                    raise BadFileError(f"{path}: not a journal (a frame of {size} bytes)")
                data = file.read(size)
                if len(data) < size:
                    return
                yield decoder.decode(data)
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: not a journal: {error}") from None
