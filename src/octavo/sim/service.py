"""A service in virtual time: what arrives, which replica takes it, when its tokens come.

Events stand on a heap, ordered by time; at one time in this order: steps that end, faults, clients that leave, requests
that come; of one kind in the order in which they were put there. When all events of a time are done, every replica that
is free and has work begins a step. No clock is read, and everything random has a seed: the same input gives the same
output, event for event.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile

from octavo.errors import OctavoError
from octavo.request import TokenDelta
from octavo.sim.arrival import Arrival
from octavo.sim.replica import Replica
from octavo.sim.router import Router


class EventKind(IntEnum):
    """The order of events of one time."""

    STEP = 0
    FAULT = 1
    ABORT = 2
    ARRIVAL = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at` on for `seconds`, steps of a replica take `slowdown` times as long."""

    at: float
    replica: int
    slowdown: float
    seconds: float


@dataclass(slots=True)
class Journey:
    """One request and its times. replica: where it decoded. first, last: of its tokens, -1 while there is none.
    reason: how it ended, "refused" where it never began."""

    number: int
    arrival: Arrival
    replica: int = -1
    first: float = -1.0
    last: float = -1.0
    tokens: int = 0
    cached: int = 0
    worst_gap: float = 0.0
    reason: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.arrival.at

    @property
    def whole(self) -> float:
        return self.last - self.arrival.at

    @property
    def mean_gap(self) -> float:
        """Time per output token after the first."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else 0.0


@dataclass(slots=True)
class StepRecord:
    """One step, for traces."""

    replica: int
    begin: float
    seconds: float
    tokens: int
    requests: int
    waiting: int


@dataclass(slots=True)
class History:
    """What happened. gaps: seconds between tokens of one request, of all requests. end: time of the last event."""

    journeys: list[Journey] = field(default_factory=list)
    gaps: array[float] = field(default_factory=lambda: array("f"))
    end: float = 0.0
    steps: int = 0
    queue: list[tuple[float, int, int]] = field(default_factory=list)  # (time, running, waiting), once a second


@dataclass(frozen=True, slots=True)
class Split:
    """Prefill and decode on replicas of their own. The cache of a prompt travels at `link` bytes a second."""

    prefill: Sequence[Replica]
    bytes_per_token: float
    link: float


Follow = Callable[[Journey, float], Arrival | None]  # a client that sends again when it has its answer
Trace = Callable[[StepRecord], None]


class Service:
    """Replicas behind a router. follow: asked at the end of each request (a closed loop). trace: told of each step."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        *,
        split: Split | None = None,
        follow: Follow | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._decoders = list(replicas)
        self._fronts = list(split.prefill) if split is not None else self._decoders
        self._all = [*self._fronts, *self._decoders] if split is not None else self._decoders
        self._router = router
        self._split = split
        self._follow = follow
        self._trace = trace
        self._heap: list[tuple[float, EventKind, int, Callable[[float], None]]] = []
        self._count = 0
        self._open: dict[str, Journey] = {}
        self._arrivals: Iterator[Arrival] = iter(())
        self._looked = -1.0
        self._numbers = {id(replica): number for number, replica in enumerate(self._all)}
        self._touched: set[int] = set()  # replicas to which something happened at this time
        self.history = History()

    def run(self, arrivals: Iterable[Arrival], *, faults: Sequence[Fault] = (), until: float = float("inf")) -> History:
        """arrivals: in order of time. until: requests that come later are left out; those that are here end."""
        self._arrivals = takewhile(lambda one: one.at <= until, arrivals)
        self._pull()
        for fault in faults:
            self._put(fault.at, EventKind.FAULT, lambda now, fault=fault: self._slow(fault, now))  # type: ignore[misc]
        while self._heap:
            now = self._heap[0][0]
            while self._heap and self._heap[0][0] == now:
                heapq.heappop(self._heap)[3](now)
            for number in sorted(self._touched):
                if not self._all[number].busy:
                    self._begin(self._all[number], now)
            self._touched.clear()
            self._look(now)
            self.history.end = now
        return self.history

    def _put(self, time: float, kind: EventKind, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, kind, self._count, what))

    def _pull(self) -> None:
        """One arrival at a time is on the heap: a trace is not read ahead."""
        arrival = next(self._arrivals, None)
        if arrival is not None:

            def come(now: float, arrival: Arrival = arrival) -> None:
                self._arrive(arrival, now)
                self._pull()

            self._put(arrival.at, EventKind.ARRIVAL, come)

    def _arrive(self, arrival: Arrival, now: float) -> None:
        journey = Journey(len(self.history.journeys), arrival)
        self.history.journeys.append(journey)
        replica = self._router.choose(arrival, self._fronts)
        first = arrival
        if self._split is not None:
            first = _asking(arrival, min(arrival.output_tokens, 1))
        if self._submit(replica, first, journey, now) and arrival.abort_after is not None:
            self._put(now + arrival.abort_after, EventKind.ABORT, lambda time: self._abort(journey, time))

    def _submit(self, replica: Replica, arrival: Arrival, journey: Journey, now: float) -> bool:
        name = str(journey.number)
        try:
            replica.submit(arrival, name, now)
        except OctavoError:
            self._finish(journey, "refused", now)
            return False
        journey.replica = self._numbers[id(replica)]
        self._touched.add(journey.replica)
        self._open[name] = journey
        return True

    def _abort(self, journey: Journey, now: float) -> None:
        if not journey.reason and journey.replica >= 0:
            self._all[journey.replica].abort(str(journey.number))
            self._touched.add(journey.replica)
            self._finish(journey, "abort", now)

    def _slow(self, fault: Fault, now: float) -> None:
        replica = self._all[fault.replica]
        replica.slowdown *= fault.slowdown

        def recover(_: float) -> None:
            replica.slowdown /= fault.slowdown

        self._put(now + fault.seconds, EventKind.FAULT, recover)

    def _begin(self, replica: Replica, now: float) -> None:
        seconds = replica.begin(now)
        if seconds is None:
            return
        self.history.steps += 1
        if self._trace is not None:
            tokens, requests = replica.step_size
            waiting = replica.scheduler.num_waiting
            self._trace(StepRecord(self._numbers[id(replica)], now, seconds, tokens, requests, waiting))
        self._put(now + seconds, EventKind.STEP, lambda time: self._end(replica, time))

    def _end(self, replica: Replica, now: float) -> None:
        self._touched.add(self._numbers[id(replica)])
        for delta in replica.end():
            journey = self._open.get(delta.request_id)
            if journey is not None:
                self._hear(journey, delta, replica, now)

    def _hear(self, journey: Journey, delta: TokenDelta, replica: Replica, now: float) -> None:
        if delta.token_ids:
            if journey.first < 0:
                journey.first = now
                journey.cached = delta.cached_tokens
            else:
                gap = now - journey.last
                journey.worst_gap = max(journey.worst_gap, gap)
                self.history.gaps.append(gap)
                self.history.gaps.extend([0.0] * (len(delta.token_ids) - 1))
            journey.last = now
            journey.tokens += len(delta.token_ids)
        if delta.finish_reason is None:
            return
        if self._split is not None and replica in self._fronts and journey.arrival.output_tokens > 1:
            self._hand_over(journey, self._split, now)
        else:
            self._finish(journey, delta.finish_reason, now)

    def _hand_over(self, journey: Journey, split: Split, now: float) -> None:
        """The cache travels; decoding goes on where the fewest requests are."""
        del self._open[str(journey.number)]
        arrival = journey.arrival
        rest = _asking(arrival, arrival.output_tokens - 1)

        def come(time: float) -> None:
            target = min(self._decoders, key=lambda one: (one.load, one.number))
            if not journey.reason:
                self._submit(target, rest, journey, time)

        self._put(now + arrival.prompt_tokens * split.bytes_per_token / split.link, EventKind.ARRIVAL, come)

    def _finish(self, journey: Journey, reason: str, now: float) -> None:
        journey.reason = reason
        self._open.pop(str(journey.number), None)
        if self._follow is not None:
            arrival = self._follow(journey, now)
            if arrival is not None:
                self._put(max(arrival.at, now), EventKind.ARRIVAL, lambda time: self._arrive(arrival, time))

    def _look(self, now: float) -> None:
        if now >= self._looked + 1:
            self._looked = now
            running = sum(one.scheduler.num_running for one in self._all)
            self.history.queue.append((now, running, sum(one.scheduler.num_waiting for one in self._all)))


def _asking(arrival: Arrival, tokens: int) -> Arrival:
    return replace(arrival, job=replace(arrival.job, output_tokens=tokens))
