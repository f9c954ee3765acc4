"""What further rows of requests cost on this machine: decode steps of the session alone, with drafts behind each token.

No scheduler and no sampling, as in measure.py. How many drafts are worth their rows is decided as in the runner
(drafters/worth.py), by these times where that has its pace (drafters/pace.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.config import EngineConfig
from octavo.drafters.worth import worthwhile
from octavo.errors import UnsupportedError
from octavo.runner.measure import Workbench, Workload, workbench
from octavo.runner.source import Progress

DRAFTS = 8  # of each request, at most
ROUNDS, SECONDS = 3, 1.5  # of each batch, all numbers of drafts in turns: so many times at least, and so long


@dataclass(frozen=True, slots=True)
class Further:
    """Of `batch` requests. seconds: a step by the drafts of each request, from none on."""

    batch: int
    seconds: tuple[float, ...]

    def step(self, rows: int) -> float:
        """Of `batch` rows at least and those of all drafts at most; on a line between the nearest that were timed."""
        drafts, rest = divmod(rows - self.batch, self.batch)
        low, high = self.seconds[drafts], self.seconds[drafts + 1 if rest else drafts]
        return low + (high - low) * rest / self.batch

    def worth(self, acceptance: float) -> tuple[int, float]:
        """(drafts of each request that make the most tokens a second where each comes true with this chance after those
        before it, tokens a second over those without); as the runner decides it."""
        chances = [[acceptance**draft for draft in range(1, len(self.seconds))]] * self.batch
        counts, gain = worthwhile(chances, self.batch, self.step)
        return max(counts), gain


def further(config: EngineConfig, batches: Sequence[int], context: int, progress: Progress) -> list[Further]:
    """Loads the model; a few seconds. Raises as Runner.open does."""
    if config.executor != "native":
        raise UnsupportedError("steps are timed on the native executor alone", param="executor")
    most = max(batches) * (1 + DRAFTS)
    load = Workload(max(batches), context + DRAFTS, 1)
    limits = replace(
        load.limits(config), max_num_batched_tokens=max(most, config.max_num_batched_tokens), max_logit_rows=most
    )
    with workbench(limits, progress) as bench:
        return [Further(batch, _seconds(bench, batch, context)) for batch in batches]


def _seconds(bench: Workbench, batch: int, context: int) -> tuple[float, ...]:
    """Medians, by drafts."""
    steps = [bench.rows(batch, context, 1 + drafts) for drafts in range(DRAFTS + 1)]
    bench.seconds(bench.header(steps[0]))  # the tables, and the model into the caches
    headers = [bench.header(rows) for rows in steps]
    seen: list[list[float]] = [[] for _ in headers]
    end = time.perf_counter() + SECONDS
    while len(seen[0]) < ROUNDS or time.perf_counter() < end:
        for header, walls in zip(headers, seen, strict=True):
            walls.append(bench.seconds(header))
    return tuple(statistics.median(walls) for walls in seen)
