"""A run in figures: distributions, rates, goodput, errors by kind, and what happened second by second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from octavo.load.record import Record
from octavo.load.slo import is_good
from octavo.workload.percentiles import percentile

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
TIMES = {
    "ttft": "time to first token",
    "gap": "gap between two pieces of output",
    "tpot": "time of an output token",
    "e2e": "time to the end",
    "lag": "sent late by",
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Sorted values, in seconds."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Distribution:
        return cls(tuple(sorted(value for value in values if value is not None)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def percentile(self, percent: float) -> float:
        """Of at least one value."""
        return percentile(self.values, percent)

    def interval(self, percent: float) -> tuple[float, float]:
        """Where the percentile of all possible runs lies, 95 % sure, if requests were independent: the values whose
        ranks are 1.96 binomial deviations away."""
        count, share = len(self.values), percent / 100
        spread = 1.96 * math.sqrt(count * share * (1 - share))
        low = max(0, math.floor(count * share - spread))
        high = min(count - 1, math.ceil(count * share + spread))
        return self.values[low], self.values[high]


@dataclass(frozen=True, slots=True)
class Second:
    """One second of the run. open: at its end. tokens: of output that arrived in it."""

    sent: int
    ended: int
    failed: int
    open: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Summary:
    """seconds: from the first moment that something was due to the last end. Rates are per second of it."""

    seconds: float
    requests: int
    failed: int
    good: int  # within the SLO; all that ended well, without one
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    times: Mapping[str, Distribution]
    errors: Mapping[str, int]
    examples: Mapping[str, str]
    timeline: tuple[Second, ...]

    @property
    def succeeded(self) -> int:
        return self.requests - self.failed

    def rate(self, count: float) -> float:
        return count / self.seconds if self.seconds else 0.0


def summarize(records: Sequence[Record], bounds: Mapping[str, float]) -> Summary:
    """Latencies are of requests that ended well, and of those that this side cut, which had waited at least so long."""
    begin = min((record.due for record in records), default=0.0)
    end = max((record.end for record in records), default=0.0)
    told = [record for record in records if record.error is None or record.cut]
    errors = Counter(record.error for record in records if record.error is not None)
    examples: dict[str, str] = {}
    for record in records:
        if record.error is not None and record.message:
            examples.setdefault(record.error, record.message)
    return Summary(
        seconds=end - begin,
        requests=len(records),
        failed=sum(errors.values()),
        good=sum(is_good(record, bounds) for record in records),
        input_tokens=sum(record.prompt_tokens or 0 for record in records),
        cached_tokens=sum(record.cached_tokens or 0 for record in records),
        output_tokens=sum(record.counted for record in records),
        times={
            "ttft": Distribution.of(record.ttft for record in told),
            "gap": Distribution.of(gap for record in told for gap in record.gaps),
            "tpot": Distribution.of(record.tpot for record in told),
            "e2e": Distribution.of(record.e2e for record in told),
            "lag": Distribution.of(record.lag for record in records),
        },
        errors=dict(errors.most_common()),
        examples=examples,
        timeline=_timeline(records, begin, end),
    )


def _timeline(records: Sequence[Record], begin: float, end: float) -> tuple[Second, ...]:
    length = math.floor(end - begin) + 1
    sent, ended, failed, tokens = ([0.0] * length for _ in range(4))
    for record in records:
        sent[int(record.due - begin)] += 1
        ended[int(record.end - begin)] += 1
        failed[int(record.end - begin)] += record.error is not None
        if record.first is None:
            continue
        moment, each = record.first - begin, record.counted / record.pieces
        tokens[int(moment)] += each
        for gap in record.gaps:
            moment += gap
            tokens[min(int(moment), length - 1)] += each
    seconds, still = [], 0.0
    for place in range(length):
        still += sent[place] - ended[place]
        seconds.append(Second(int(sent[place]), int(ended[place]), int(failed[place]), int(still), tokens[place]))
    return tuple(seconds)
