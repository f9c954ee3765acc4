"""What the server counts of its requests, as plain data: counters and distributions, by model and by route."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from octavo.engine.course import Course

# Seconds. A prompt that takes minutes is nothing strange on a CPU, and a cached one takes a millisecond.
WAIT_BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
)
GAP_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0),
)
COMPILE_BOUNDS = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
TOKEN_BOUNDS = tuple(float(2**power) for power in range(18))


class Distribution:
    """counts: of values up to each bound, each counted once, and of larger ones."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class ModelTally:
    """outcomes: outputs by their finish reason, vectors as "embedding". Distributions in seconds or tokens.

    first_token: from the arrival of the HTTP request. gap: between two tokens of one output. whole: from arrival to
    the end of an output. queue, prefill, decode: its parts inside the engine.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter(dict.fromkeys(("stop", "length", "abort", "error"), 0))
        self.first_token = Distribution(WAIT_BOUNDS)
        self.gap = Distribution(GAP_BOUNDS)
        self.whole = Distribution(WAIT_BOUNDS)
        self.queue = Distribution(WAIT_BOUNDS)
        self.prefill = Distribution(WAIT_BOUNDS)
        self.decode = Distribution(WAIT_BOUNDS)
        self.prompt_tokens = Distribution(TOKEN_BOUNDS)
        self.output_tokens = Distribution(TOKEN_BOUNDS)
        self.compiling = Distribution(COMPILE_BOUNDS)

    def began(self, course: Course, arrived: float) -> None:
        """Its first token has come."""
        self.first_token.add(course.first - arrived)
        self.queue.add(course.queued)
        self.prefill.add(max(course.first - course.begun - course.queued, 0.0))

    def ended(self, course: Course, arrived: float) -> None:
        self.outcomes[course.finish_reason or "abort"] += 1
        self.whole.add(course.ended - arrived)
        self.prompt_tokens.add(course.prompt_tokens)
        self.output_tokens.add(course.output_tokens)
        if course.first:
            self.decode.add(course.latest - course.first)


class Tally:
    """http: (route, method, status) -> requests. 499: the client left before its answer began."""

    def __init__(self) -> None:
        self.models: dict[str, ModelTally] = {}
        self.http: Counter[tuple[str, str, int]] = Counter()
        self.http_seconds: dict[str, Distribution] = {}
        self.http_open = 0

    def model(self, name: str) -> ModelTally:
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = ModelTally()
        return found

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        self.http[route, method, status] += 1
        if route not in self.http_seconds:
            self.http_seconds[route] = Distribution(WAIT_BOUNDS)
        self.http_seconds[route].add(seconds)
