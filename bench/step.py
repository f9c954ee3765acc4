"""Time of one decode step outside the model: plan, header, commit, at 32 and 256 running requests.

    PYTHONPATH=src python bench/step.py

The machine is a fake that answers at once: what is printed is the engine's own processor time, in microseconds: medians
over the steps, with the target for their sum.
"""

from __future__ import annotations

import statistics
import time

from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import Request, RowResult, SamplingParams, StepResult
from octavo.runner.batch import HeaderWriter
from octavo.types import KVGroup

CONTEXT, STEPS = 128, 400
TARGETS = {32: 150, 256: 1000}  # microseconds


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
        rows = tuple(RowResult(token_ids=(row.start % 50000,)) if row.sample else RowResult() for row in plan.rows)
        result = StepResult(plan.number, rows)
        sampled = time.thread_time()
        scheduler.commit(plan, result)
        done = time.thread_time()
        if len(plan.rows) == running and plan.num_tokens == running:
            for name, seconds in zip(times, (planned - start, written - planned, done - sampled), strict=True):
                times[name].append(1e6 * seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    print(f"{'running':>7} {'plan':>8} {'header':>8} {'commit':>8} {'sum':>8} {'target':>8}   microseconds a step")
    for running, target in TARGETS.items():
        parts = measure(running)
        figures = (*parts.values(), sum(parts.values()), float(target))
        print(f"{running:>7} " + " ".join(f"{figure:>8.0f}" for figure in figures))


if __name__ == "__main__":
    main()
