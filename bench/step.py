"""Time of one decode step outside the model: plan, header, commit, at 32 and 256 running requests.

    PYTHONPATH=src python bench/step.py
    PYTHONPATH=src python bench/step.py --live smollm2:135m --threads 2

Without --live the machine is a fake that answers at once: what is printed is the engine's own processor time, in
microseconds: medians over the steps, with the target for their sum. Caches are warm. With it a loaded model runs, and
the same parts are timed between native calls that have emptied the caches, at 1, 8 and 32 running requests.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from octavo.config import EngineConfig
from octavo.drafters.null import NullDrafter
from octavo.engine.loop import EngineLoop
from octavo.engine.parts import EngineParts, open_engine
from octavo.engine.wire import Close, Submit
from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import Request, RowResult, SamplingParams, StepResult
from octavo.runner.batch import HeaderWriter
from octavo.types import KVGroup

CONTEXT, STEPS = 128, 400
TARGETS = {32: 150, 256: 1000}  # microseconds
LIVE_STEPS = 100
LIVE_BATCHES = (1, 8, 32)


def measure(running: int) -> dict[str, float]:
    limits = SchedulerLimits(running, 8192, running, 2048)
    ledger = KVLedger([KVGroup("full", "full")], running * 48 + 1, 16, numerics="fake")
    scheduler = Scheduler(limits, ledger)
    writer = HeaderWriter(8192, running, running)
    params = SamplingParams(max_tokens=STEPS + 8, ignore_eos=True)
    for number in range(running):
        prompt = tuple((number * 7919 + i) % 50000 for i in range(CONTEXT))
        scheduler.add(Request(str(number), prompt, params))
    times: dict[str, list[float]] = {"plan": [], "header": [], "commit": []}
    for _ in range(STEPS):
        start = time.thread_time()
        plan = scheduler.schedule(start)
        planned = time.thread_time()
        writer.write(plan.rows, copies=plan.copies, tables=plan.tables)
        written = time.thread_time()
        rows = tuple(row.start % 50000 if row.sample else RowResult() for row in plan.rows)
        result = StepResult(plan.number, rows)
        sampled = time.thread_time()
        scheduler.commit(plan, result)
        done = time.thread_time()
        if len(plan.rows) == running and plan.num_tokens == running:
            for name, seconds in zip(times, (planned - start, written - planned, done - sampled), strict=True):
                times[name].append(1e6 * seconds)
    return {name: statistics.median(values) for name, values in times.items()}


class Watch:
    """Puts a stopwatch around methods of live objects. Microseconds of each call, by name, in order."""

    def __init__(self) -> None:
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def on(self, owner: object, method: str, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)
        times = self.times[name]

        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return inner(*args, **options)
            finally:
                times.append((time.perf_counter_ns() - start) / 1000)

        setattr(owner, method, timed)

    def medians(self, steps: int) -> dict[str, float]:
        """Of the last `steps` calls but one: in the very last, requests end."""
        return {name: statistics.median(times[-steps - 1 : -1]) for name, times in self.times.items()}


class WatchedCohort:
    """A native cohort, whose method cannot be replaced."""

    def __init__(self, cohort: Any, watch: Watch) -> None:
        self.sample = cohort.sample
        watch.on(self, "sample", "sampling")


def run(loop: EngineLoop, parts: EngineParts, batch: int) -> None:
    """`batch` requests to their end."""
    params = SamplingParams(temperature=0.0, max_tokens=LIVE_STEPS + 8, ignore_eos=True)
    for number in range(batch):
        prompt = tuple((batch * 7907 + number * 7919 + i * 31) % parts.info.vocab_size for i in range(CONTEXT))
        loop.post(Submit(Request(f"{batch}-{number}-{time.monotonic_ns()}", prompt, params)))
    loop.turn()
    while parts.scheduler.has_work:
        loop.turn()


def shares(took: dict[str, float]) -> dict[str, float]:
    """What each part of a step takes, of what the stopwatches say."""
    plan, native, sampling, commit = (took[name] for name in ("plan", "native", "sampling", "commit"))
    return {
        "plan": plan,
        "header": took["launch"] - native,
        "native": native,
        "sampling": sampling,
        "results": took["finish"] - sampling,
        "commit": commit,
        "loop": took["turn"] - plan - took["launch"] - took["finish"] - commit,
    }


def print_live(model: str, threads: int | None) -> None:
    parts = open_engine(EngineConfig(model=model, threads=threads), NullDrafter(), lambda done, total: None)
    loop = EngineLoop(parts.scheduler, parts.runner, parts.stats, lambda update: None)
    watch, runner = Watch(), parts.runner
    watch.on(runner._session, "run", "native")
    watch.on(loop, "turn", "turn")
    outside = []
    for batch in LIVE_BATCHES:  # two stopwatches: each costs a microsecond or two itself
        run(loop, parts, batch)
        took = watch.medians(LIVE_STEPS)
        outside.append(took["turn"] - took["native"])
    watch.on(parts.scheduler, "schedule", "plan")
    watch.on(parts.scheduler, "commit", "commit")
    watch.on(runner, "launch", "launch")
    watch.on(runner, "finish", "finish")
    cohort = runner._sampler.cohort
    runner._sampler.cohort = lambda requests: WatchedCohort(cohort(requests), watch)  # type: ignore[method-assign]
    for batch, rest in zip(LIVE_BATCHES, outside, strict=True):
        run(loop, parts, batch)
        figures = shares(watch.medians(LIVE_STEPS)) | {"outside": rest}
        if batch == LIVE_BATCHES[0]:
            print(f"{'running':>7} " + " ".join(f"{name:>8}" for name in figures) + "   microseconds a step, live")
        print(f"{batch:>7} " + " ".join(f"{figure:>8.0f}" for figure in figures.values()))
    loop.post(Close())
    loop.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", metavar="MODEL", help="time the parts of a step around a loaded model")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.live:
        print_live(args.live, args.threads)
        return
    print(f"{'running':>7} {'plan':>8} {'header':>8} {'commit':>8} {'sum':>8} {'target':>8}   microseconds a step")
    for running, target in TARGETS.items():
        parts = measure(running)
        figures = (*parts.values(), sum(parts.values()), float(target))
        print(f"{running:>7} " + " ".join(f"{figure:>8.0f}" for figure in figures))


if __name__ == "__main__":
    main()
