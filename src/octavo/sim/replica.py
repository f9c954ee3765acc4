"""One engine in virtual time: the scheduler and the ledger that serve, and a step model that answers for the machine.

The loop of engine/loop.py without its threads: what comes is added, a plan is made when the machine is free, its result
is committed when its seconds are over. Tokens are stand-ins: lengths are what the workload says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import STUCK_ROUNDS, Scheduler, SchedulerLimits
from octavo.policy.stats import PolicyStats
from octavo.request import Request, Row, RowResult, SamplingParams, StepPlan, StepResult, TokenDelta
from octavo.sim.arrival import Arrival
from octavo.types import KVGroup, StepShape

OUTPUT_IDS = 2**30  # ids from here on are output


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an engine is told and what it found out: the limits of its scheduler and the size of its cache."""

    groups: tuple[KVGroup, ...]
    num_blocks: int  # usable ones
    block_tokens: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_logit_rows: int = 0  # 0: as many as fit
    plans_outstanding: int = 1
    enable_prefix_caching: bool = True
    num_snapshots: int = 1
    snapshot_every: int = 0

    def scheduler(self) -> Scheduler:
        ledger = KVLedger(
            self.groups,
            self.num_blocks + 1,
            self.block_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            num_snapshots=self.num_snapshots,
            snapshot_every=self.snapshot_every,
        )
        limits = SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_logit_rows=self.max_logit_rows or self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            plans_outstanding=self.plans_outstanding,
        )
        return Scheduler(limits, ledger)


@dataclass(frozen=True, slots=True)
class Drafts:
    """A drafter as a law: so many drafts a step, each accepted with this chance if all before it were; what proposing
    costs, in seconds a step."""

    count: int
    acceptance: float
    seconds: float = 0.0


class Replica:
    """seconds: of a step of some shape. slowdown: what a fault makes of them. imports: prompts come with their caches
    from where they were computed, all but the last token."""

    def __init__(
        self,
        number: int,
        sizes: Sizes,
        seconds: Callable[[StepShape], float],
        *,
        drafts: Drafts | None = None,
        imports: bool = False,
        seed: int = 0,
    ) -> None:
        self.number = number
        self.sizes = sizes
        self.scheduler = sizes.scheduler()
        self.slowdown = 1.0
        self.busy_seconds = 0.0
        self.queued_tokens = 0  # of prompts whose first row is still to come
        self._seconds = seconds
        self._drafts = drafts
        self._imports = imports
        self._random = random.Random(f"{seed}/{number}")
        self._plan: StepPlan | None = None
        self._names = 0
        self._waiting: dict[str, int] = {}

    @property
    def stats(self) -> PolicyStats:
        return self.scheduler.stats

    @property
    def load(self) -> int:
        """Requests that are here."""
        return self.scheduler.num_running + self.scheduler.num_waiting

    @property
    def busy(self) -> bool:
        return self._plan is not None

    @property
    def step_size(self) -> tuple[int, int]:
        """(tokens, requests) of the step under way."""
        return (self._plan.num_tokens, len(self._plan.rows)) if self._plan is not None else (0, 0)

    def submit(self, arrival: Arrival, name: str, now: float) -> None:
        """Raises RequestError, ContextLengthError, CapacityError as an engine does."""
        ids = arrival.prompt_ids()
        request = Request(
            name,
            ids,
            _params(arrival.output_tokens),
            tenant=arrival.tenant,
            priority=arrival.priority,
            arrival=now,
        )
        self.scheduler.add(request)
        self._waiting[name] = len(ids)
        self.queued_tokens += len(ids)

    def abort(self, name: str) -> TokenDelta | None:
        self._started(name)
        return self.scheduler.abort(name)

    def begin(self, now: float) -> float | None:
        """Launches the next step: its seconds, None when there is nothing to do."""
        for _ in range(STUCK_ROUNDS + 1):  # empty plans are counted, and end in a preemption
            if (plan := self.scheduler.schedule(now)) or not self.scheduler.num_running:
                break
        if not plan:
            return None
        self._plan = plan
        taken = self._seconds(shape_of(plan, imported=self._imports)) * self.slowdown
        if self._drafts is not None:
            taken += self._drafts.seconds
        self.busy_seconds += taken
        return taken

    def end(self) -> list[TokenDelta]:
        """The step is over."""
        plan, self._plan = self._plan, None
        assert plan is not None
        deltas = self.scheduler.commit(plan, StepResult(plan.number, tuple(map(self._result, plan.rows))))
        for delta in deltas:
            if delta.token_ids:
                self._started(delta.request_id)
        return deltas

    def _started(self, name: str) -> None:
        self.queued_tokens -= self._waiting.pop(name, 0)

    def _result(self, row: Row) -> RowResult | int:
        if not row.sample:
            return RowResult()
        self._names += 1
        token = OUTPUT_IDS + self._names % OUTPUT_IDS
        if self._drafts is None:
            return token
        known = len(row.token_ids) - row.num_drafts
        kept = 0
        while kept < row.num_drafts and self._random.random() < self._drafts.acceptance:
            kept += 1
        ids = row.token_ids[known : known + kept]
        draft_ids = (token,) * self._drafts.count
        return RowResult((*ids, token), accepted=tuple(range(known, known + kept)), draft_ids=draft_ids)


def shape_of(plan: StepPlan, *, imported: bool = False) -> StepShape:
    """What the cost rules see of a plan. imported: of prompts, the last token alone is computed."""
    rows: Sequence[Row] = plan.rows
    counts = tuple(len(row.token_ids) for row in rows)
    contexts = tuple(row.start for row in rows)
    if imported:
        contexts = tuple(row.start + len(row.token_ids) - 1 - row.num_drafts for row in rows)
        counts = tuple(1 + row.num_drafts for row in rows)
    return StepShape(counts, contexts, sum(row.num_logits for row in rows))


@lru_cache(maxsize=4096)
def _params(output_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=output_tokens, ignore_eos=True)
