"""What a simulated service did, in figures; and the highest rate at which it keeps its promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from octavo.sim.replica import Replica
from octavo.sim.service import History, Journey
from octavo.workload.percentiles import percentile

PERCENTILES = (50, 90, 95, 99)
# Two-sided 95 % of Student's t by degrees of freedom, from 1; normal beyond.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds that a first token, and a token after another (the mean of its request), may take; None: any time."""

    ttft: float | None = None
    gap: float | None = None

    def kept(self, journey: Journey) -> bool:
        if journey.first < 0 or journey.reason not in ("length", "stop"):
            return False
        late = self.ttft is not None and journey.ttft > self.ttft
        return not late and (self.gap is None or journey.mean_gap <= self.gap)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles (by PERCENTILES) and the largest, in seconds."""

    mean: float
    at: tuple[float, ...]
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        if not ordered:
            return cls(0.0, (0.0,) * len(PERCENTILES), 0.0)
        return cls(fmean(ordered), tuple(percentile(ordered, p) for p in PERCENTILES), ordered[-1])


@dataclass(frozen=True, slots=True)
class Summary:
    """seconds: of virtual time. ended: requests by how. kept: share of all requests within the SLO; goodput: of them,
    a second. busy: share of time in which replicas computed. cached: share of prompt tokens that were found."""

    seconds: float
    requests: int
    ended: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    ttft: Spread
    gap: Spread
    mean_gap: Spread
    whole: Spread
    kept: float
    goodput: float
    busy: float
    cached: float
    preemptions: int
    steps: int
    most_waiting: int


def summarize(history: History, replicas: Sequence[Replica], slo: Slo) -> Summary:
    journeys = history.journeys
    served = [journey for journey in journeys if journey.first >= 0]
    ended: dict[str, int] = {}
    for journey in journeys:
        ended[journey.reason or "open"] = ended.get(journey.reason or "open", 0) + 1
    kept = sum(slo.kept(journey) for journey in journeys)
    seconds = max(history.end, 1e-9)
    prompt = sum(journey.arrival.prompt_tokens for journey in served)
    return Summary(
        seconds=history.end,
        requests=len(journeys),
        ended=dict(sorted(ended.items())),
        prompt_tokens=prompt,
        output_tokens=sum(journey.tokens for journey in served),
        ttft=Spread.of(journey.ttft for journey in served),
        gap=Spread.of(history.gaps),
        mean_gap=Spread.of(journey.mean_gap for journey in served if journey.tokens > 1),
        whole=Spread.of(journey.whole for journey in served if journey.reason in ("length", "stop")),
        kept=kept / max(len(journeys), 1),
        goodput=kept / seconds,
        busy=sum(replica.busy_seconds for replica in replicas) / (seconds * len(replicas)),
        cached=sum(journey.cached for journey in served) / max(prompt, 1),
        preemptions=sum(replica.stats.preemptions for replica in replicas),
        steps=history.steps,
        most_waiting=max((waiting for _, _, waiting in history.queue), default=0),
    )


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate (requests a second) at which the wanted share keeps the SLO, and its confidence: half the width
    of the 95 % interval over seeds. tried: rate -> share kept, by the first seed."""

    rate: float
    spread: float
    tried: tuple[tuple[float, float], ...]


def capacity(
    kept: Callable[[float, int], float], share: float, seeds: int, *, first: float, steps: int = 7
) -> Capacity:
    """kept(rate, seed): the share within the SLO. Doubles from `first` until it fails, then halves the interval, for
    each seed by itself."""
    found: list[float] = []
    tried: list[tuple[float, float]] = []
    for seed in range(seeds):
        low, high = 0.0, first

        def holds(rate: float, seed: int = seed) -> bool:
            value = kept(rate, seed)
            if seed == 0:
                tried.append((rate, value))
            return value >= share

        while holds(high) and high < first * 2**20:
            low, high = high, 2 * high
        for _ in range(steps):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        found.append(low)
    spread = 0.0
    if len(found) > 1:
        spread = (*_STUDENT, 1.96)[min(len(found) - 2, len(_STUDENT))] * stdev(found) / math.sqrt(len(found))
    return Capacity(fmean(found), spread, tuple(sorted(tried)))
