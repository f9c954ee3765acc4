"""The scheduler under faults, at length: `python -m policy.long [--steps N] [--seeds N] [--jobs N] [--state FOLDER]`.

Seeds are dealt in chunks to processes; a chunk that is done is a line in the state's file, so that a run that was
stopped goes on where it was. At the end the figures are written into docs/reliability.md, between its marks. A seed
that fails is told with the command that runs it again: `python -m policy.long --replay SEED`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from policy.fake import Violation
from policy.sim import simulate

CHUNK, PLANS = 500, 50  # seeds of a chunk; plans of a seed, which ends when its requests do
FIRST = 1_000_000  # apart from the seeds of the suite
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- long simulation: begin -->", "<!-- long simulation: end -->"
FAULTS = {
    "clients that left while waiting": "aborts waiting",
    "clients that left while preempted": "aborts preempted",
    "clients that left while running": "aborts running",
    "clients that left while a step named them": "aborts in_flight",
    "allocations refused": "refused",
    "rows that were not finite": "finished error",
    "preemptions": "preemptions",
    "results for requests that had ended": "late_results",
    "drafts rejected": "drafts_rejected",
    "requests refused at the door": "rejected",
}


def chunk(first: int) -> dict[str, object]:
    """The counts of one chunk of seeds."""
    begun, counts, failed = time.process_time(), Counter(), []
    for seed in range(first, first + CHUNK):
        try:
            report = simulate(seed, PLANS)
        except Violation as fault:
            failed.append([seed, str(fault)])
            continue
        counts.update(plans=report.plans, requests=report.requests, refused=report.refused, rejected=report.rejected)
        for name, value in report.stats.as_dict().items():
            if isinstance(value, dict):
                counts.update({f"{name} {key}": number for key, number in value.items()})
            elif isinstance(value, int):
                counts[name] += value
    return {"first": first, "seconds": time.process_time() - begun, "failed": failed, "counts": dict(counts)}


def done(path: Path) -> Iterator[dict[str, object]]:
    """Chunks that are kept; a line that was cut off is none."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def run(steps: int, seeds: int, jobs: int, path: Path) -> list[dict[str, object]]:
    found = {entry["first"]: entry for entry in done(path)}
    path.parent.mkdir(parents=True, exist_ok=True)

    def plans() -> int:
        return sum(entry["counts"]["plans"] for entry in found.values())

    waiting = (first for first in range(FIRST, 2**40, CHUNK) if first not in found)
    with multiprocessing.Pool(jobs) as pool, path.open("a") as file:
        while plans() < steps or len(found) * CHUNK < seeds:
            batch = [next(waiting) for _ in range(jobs * 2)]
            for entry in pool.imap_unordered(chunk, batch):
                found[entry["first"]] = entry
                file.write(json.dumps(entry) + "\n")
                file.flush()
                for seed, fault in entry["failed"]:
                    print(f"seed {seed}: {fault}; again: python -m policy.long --replay {seed}", flush=True)
            print(f"{len(found) * CHUNK:,} seeds, {plans():,} plans", flush=True)
    return list(found.values())


def table(entries: list[dict[str, object]]) -> str:
    counts, failed, seconds = Counter(), [], 0.0
    for entry in entries:
        counts.update(entry["counts"])
        failed += entry["failed"]
        seconds += entry["seconds"]
    rows = [
        ("steps (plans made and committed)", f"{counts['plans']:,}"),
        ("seeds", f"{len(entries) * CHUNK:,}"),
        ("requests", f"{counts['requests']:,}"),
        *((what, f"{counts[name]:,}") for what, name in FAULTS.items()),
        ("violations", f"{len(failed):,}"),
        ("steps a second of one core, all checks included", f"{counts['plans'] / max(seconds, 1e-9):,.0f}"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {count} |" for what, count in rows)])


def write(text: str) -> None:
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(description="the scheduler under faults, at length")
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--state", type=Path, default=Path("build/simulate-long.jsonl"))
    parser.add_argument("--replay", type=int, metavar="SEED", help="one seed alone, its fault as it is raised")
    args = parser.parse_args()
    if args.replay is not None:
        print(simulate(args.replay, PLANS))
        return 0
    entries = run(args.steps, args.seeds, args.jobs, args.state)
    text = table(entries)
    print(text)
    if BEGIN in (PAGE.read_text() if PAGE.exists() else ""):
        write(text)
    return 1 if any(entry["failed"] for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
