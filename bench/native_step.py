"""Milliseconds of one native step without the engine around it; builds and thread counts compared in one run.

    PYTHONPATH=src python bench/native_step.py MODEL [--shapes 1x128 8x128 p512] [--threads 1 2]
        [--against OTHER/src ...] [--profile] [--hog]

A shape BxC is B requests that decode one token after C others, pN one prompt of N tokens, MpN M of them. --against:
source trees with a built kernel module, each run in a process of its own, turn by turn with this one. --profile: share
of each operator. --hog: with another process of niceness 5 computing on one of the cores all the while.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHAPES = ("1x128", "8x128", "32x128", "p512")
WORKER_COMMAND = (sys.executable, str(Path(__file__).resolve()), "--worker")
HOG = "import os\nos.nice(5)\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"


def parse_shape(text: str) -> tuple[int, int, int]:
    """(requests, context, tokens of each)."""
    if "p" in text:
        prompts, tokens = text.split("p")
        return int(prompts or 1), 0, int(tokens)
    batch, context = text.split("x")
    return int(batch), int(context), 1


class Bench:
    """One model open at one thread count."""

    def __init__(self, model: str, threads: int, shapes: list[str]) -> None:
        from octavo.config import EngineConfig
        from octavo.drafters.null import no_drafter
        from octavo.request import Row, TableUpdate
        from octavo.runner.batch import HeaderWriter
        from octavo.runner.runner import Runner

        sizes = [parse_shape(shape) for shape in shapes]
        most = max(context + tokens for _, context, tokens in sizes)
        seqs, blocks = max(batch for batch, _, _ in sizes), -(-most // 16)
        tokens = max(batch * tokens for batch, _, tokens in sizes)
        config = EngineConfig(
            model=model,
            threads=threads,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            max_model_len=most,
            num_blocks=seqs * blocks,
        )
        self.runner = Runner.open(config, no_drafter, lambda done, total: None)
        self.session: Any = self.runner._session
        groups = range(len(self.runner.loaded.groups))
        tables = [
            TableUpdate(slot, group, 0, tuple(range(1 + slot * blocks, 1 + (slot + 1) * blocks)))
            for slot in range(seqs)
            for group in groups
        ]
        self.session.run("target", HeaderWriter(tokens, seqs, seqs).write((), tables=tables))
        self.headers = {}
        for shape, (batch, context, length) in zip(shapes, sizes, strict=True):
            rows = [
                Row(str(n), n, context, tuple((n * 7919 + i * 31) % 40000 for i in range(length)), length - 1, True)
                for n in range(batch)
            ]
            self.headers[shape] = HeaderWriter(tokens, seqs, seqs).write(rows)

    def run(self, shape: str, seconds: float) -> list[float]:
        """Seconds of each step, as many as fit; one is not counted."""
        header, times = self.headers[shape], []
        self.session.run("target", header)
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self.session.run("target", header)
            times.append(time.perf_counter() - start)
        return times

    def profile(self, shape: str, seconds: float) -> dict[str, float]:
        """Seconds a step of the operators of each name, layers together, as thread 0 saw them."""
        self.session.run("target", self.headers[shape])
        before = dict(self.session.profile("target", on=True))
        steps = len(self.run(shape, seconds)) + 1
        taken: dict[str, float] = {}
        for name, total in self.session.profile("target", on=False):
            kind = re.sub(r"^\d+\.", "", name)
            taken[kind] = taken.get(kind, 0.0) + (total - before[name]) / steps
        return taken


def work() -> None:
    """The process of one build: a JSON request a line, a JSON answer a line."""
    benches: dict[int, Bench] = {}
    for line in sys.stdin:
        task = json.loads(line)
        threads = task["threads"]
        if threads not in benches:
            benches[threads] = Bench(task["model"], threads, task["shapes"])
        call = benches[threads].profile if task["profile"] else benches[threads].run
        answer = call(task["shape"], task["seconds"]) if task["shape"] else None
        print(json.dumps(answer), flush=True)


class Build:
    def __init__(self, source: str) -> None:
        self.name = source
        self.process = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((source, os.environ.get("PYTHONPATH", "")))},
        )

    def ask(self, **task: object) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(task), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the build's process ended")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def hog(wanted: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", HOG]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def compare(builds: list[Build], args: argparse.Namespace) -> None:
    common = {"model": args.model, "shapes": args.shapes, "profile": False}
    with hog(args.hog):
        for threads in args.threads:
            for build in builds:
                build.ask(threads=threads, shape=None, seconds=0, **common)
            for shape in args.shapes:
                times: dict[str, list[float]] = {build.name: [] for build in builds}
                for _ in range(args.rounds):
                    for build in builds:
                        times[build.name] += build.ask(threads=threads, shape=shape, seconds=args.seconds, **common)
                report(shape, threads, times)


def report(shape: str, threads: int, times: dict[str, list[float]]) -> None:
    batch, _, tokens = parse_shape(shape)
    first = None
    for name, seconds in times.items():
        low, middle = min(seconds), statistics.median(seconds)
        first = first or middle
        print(
            f"{shape:>8}  threads {threads}  best {low * 1e3:8.3f} ms  median {middle * 1e3:8.3f} ms "
            f"{batch * tokens / middle:8.0f} tok/s  x {first / middle:5.3f}  {name}",
            flush=True,
        )


def profiles(builds: list[Build], args: argparse.Namespace) -> None:
    for build in builds:
        for threads in args.threads:
            for shape in args.shapes:
                taken = build.ask(
                    threads=threads,
                    shape=shape,
                    seconds=args.seconds,
                    model=args.model,
                    shapes=args.shapes,
                    profile=True,
                )
                total = sum(taken.values())
                print(f"{shape}, threads {threads}, {build.name}: {total * 1e3:.3f} ms in operators")
                for kind, seconds in sorted(taken.items(), key=lambda item: -item[1]):
                    print(f"    {kind:<16} {seconds * 1e3:8.3f} ms  {seconds / total:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description="milliseconds of one native step")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--against", nargs="+", default=[], help="other source trees")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="of each shape, build and round")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--hog", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work()
    if not args.model:
        parser.error("MODEL is missing")
    here = str(Path(__file__).resolve().parents[1] / "src")
    builds = [Build(source) for source in dict.fromkeys([here, *(str(Path(s).resolve()) for s in args.against)])]
    (profiles if args.profile else compare)(builds, args)
    for build in builds:
        build.close()


if __name__ == "__main__":
    main()
