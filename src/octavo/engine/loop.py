"""The loop: the only thread that touches the scheduler and the runner. Commands come in, updates go out.

    inbox --> obey --> schedule --> launch ... finish --> commit --> emit
                       '---- up to `depth` plans outstanding ----'

Idle, it sleeps on its inbox. A fault inside a turn ends every request with an error and stops the engine for good.
"""

from __future__ import annotations

import logging
import queue
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from octavo.engine.port import STEP_BOUNDS, EngineStats
from octavo.engine.turns import Alone, Turns
from octavo.engine.wire import Abort, Close, Command, Fault, Finish, Submit, Update
from octavo.errors import EngineError, OctavoError
from octavo.request import FinishReason, Request, StepPlan, StepResult, TokenDelta

_log = logging.getLogger("octavo.engine")
Emit = Callable[[Update], None]
# Stats travel when requests come, start or go, and else this often (seconds): they are no part of a step's work.
STATS_SECONDS = 0.05
# Turns in a row that may bring nothing while requests wait. Each may preempt one, so progress comes long before.
STALL_TURNS = 1000
NOT_FINITE = "the model's logits are not finite numbers: the request was ended"


class StepScheduler(Protocol):
    """What the loop asks of policy.Scheduler."""

    @property
    def has_work(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> TokenDelta | None: ...
    def finish(
        self, request_id: str, at_token: int, reason: FinishReason = "stop", stop_reason: int | str | None = None
    ) -> TokenDelta | None: ...
    def schedule(self, now: float) -> StepPlan: ...
    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]: ...


class StepRunner(Protocol):
    """What the loop asks of runner.Runner."""

    def add(self, request: Request) -> None: ...
    def forget(self, request_id: str) -> float:
        """Seconds that the masks of its output took."""

    def launch(self, plan: StepPlan) -> None: ...
    def finish(self) -> StepResult: ...
    def close(self) -> None: ...


class EngineLoop:
    """`post` from any thread; `run` in the thread that owns the engine, until Close or a fault."""

    def __init__(
        self,
        scheduler: StepScheduler,
        runner: StepRunner,
        stats: Callable[[], EngineStats],
        emit: Emit,
        *,
        depth: int = 1,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._stats = stats
        self._emit = emit
        self._depth = depth
        self._clock = clock
        self._turns = turns or Alone()
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._flight: deque[StepPlan] = deque()  # launched, not committed, in plan order
        self._open: set[str] = set()  # requests that have not had their last delta
        self._deltas: list[TokenDelta] = []  # of this turn
        self._empty_turns = 0
        self._closing = False
        self._news = True  # requests came, started or went since stats were last told
        self._rows = 0  # of the last plan committed
        self._told = 0.0  # when that was
        self._step_seconds = 0.0
        self._step_counts = [0] * (len(STEP_BOUNDS) + 1)
        self.busy_since: float | None = None  # when the turn that now runs stopped waiting; None while it waits

    def post(self, command: Command) -> None:
        self._inbox.put(command)

    def run(self) -> None:
        """Turns until Close. Whatever happens, the last update leaves no request open."""
        try:
            while not self._closing:
                self.turn()
            self._drain()
            self._emit_update(None)
        except Exception as error:
            _log.exception("the engine has stopped")
            self._end_all(str(error) or type(error).__name__)
            self._emit_update(Fault.of(error))
        finally:
            self._runner.close()

    def turn(self) -> None:
        """One step of the engine, or one sleep until a command comes."""
        self._obey()
        now = self.busy_since = self._clock()
        if self._closing:
            return
        while len(self._flight) < self._depth and (plan := self._scheduler.schedule(now)):
            self._take_turn()
            self._runner.launch(plan)
            self._flight.append(plan)
        if self._flight:
            self._take_turn()
            self._commit(self._flight.popleft())
            self._turns.give()
            self._count_step(self._clock() - (self.busy_since or now))
            self._empty_turns = 0
        elif self._scheduler.has_work:
            self._empty_turns += 1
            if self._empty_turns > STALL_TURNS:
                raise EngineError("requests wait and nothing can wake them: the scheduler has stalled")
        self._emit_update(None)

    # ---- inside a turn
    def _take_turn(self) -> None:
        """The wait for cores that another engine has is no work of this one."""
        if not self._turns.held:
            self.busy_since = None
            self._turns.take()
            self.busy_since = self._clock()

    def _obey(self) -> None:
        """Takes every command that is there; waits for one when there is nothing else to do."""
        idle = not self._flight and not self._scheduler.has_work
        if idle:
            self.busy_since = None
        elif self._inbox.empty():
            return
        self._news = True
        while not self._closing:
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return
            idle = False
            match command:
                case Submit(request):
                    self._add(request)
                case Abort(request_id):
                    self._deliver(self._scheduler.abort(request_id))
                case Finish(request_id, at_token, stop_reason):
                    self._deliver(self._scheduler.finish(request_id, at_token, "stop", stop_reason))
                case Close():
                    self._closing = True

    def _add(self, request: Request) -> None:
        """A request that is refused ends here with an error that says why. Ids are unique: the engine sees to it."""
        request.arrival = self._clock()
        self._open.add(request.id)
        try:
            self._runner.add(request)
            self._scheduler.add(request)
        except OctavoError as error:
            self._deliver(TokenDelta(request.id, (), finish_reason="error", stop_reason=error.message))

    def _commit(self, plan: StepPlan) -> None:
        self._news |= len(plan.rows) != self._rows
        self._rows = len(plan.rows)
        for delta in self._scheduler.commit(plan, self._runner.finish()):
            if delta.finish_reason is None:
                self._deltas.append(delta)
            else:
                self._deliver(delta)

    def _count_step(self, seconds: float) -> None:
        self._step_seconds += seconds
        self._step_counts[bisect_left(STEP_BOUNDS, seconds)] += 1

    def _deliver(self, delta: TokenDelta | None) -> None:
        if delta is None or delta.request_id not in self._open:
            return
        if delta.finish_reason == "error" and delta.stop_reason is None:
            delta = msgspec.structs.replace(delta, stop_reason=NOT_FINITE)
        if delta.finish_reason is not None:
            self._news = True
            self._open.discard(delta.request_id)
            if spent := self._runner.forget(delta.request_id):
                delta = msgspec.structs.replace(delta, mask_seconds=spent)
        self._deltas.append(delta)

    def _emit_update(self, fault: Fault | None) -> None:
        now = self.busy_since or 0.0
        stats = None
        if self._news or now - self._told >= STATS_SECONDS:
            counts = tuple(self._step_counts)
            stats = replace(self._stats(), step_seconds=self._step_seconds, step_counts=counts)
            self._news, self._told = False, now
        if self._deltas or stats or fault:
            deltas, self._deltas = tuple(self._deltas), []
            self._emit(Update(deltas, stats, fault))

    def _drain(self) -> None:
        """Ends every request and commits what is in flight, so that every block comes home."""
        for request_id in tuple(self._open):
            self._deliver(self._scheduler.abort(request_id))
        while self._flight:
            self._commit(self._flight.popleft())

    def _end_all(self, message: str) -> None:
        """After a fault neither scheduler nor runner is asked again."""
        for request_id in sorted(self._open):
            self._deltas.append(TokenDelta(request_id, (), finish_reason="error", stop_reason=message))
        self._open.clear()
