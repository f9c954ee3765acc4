"""SIGKILL for engines, servers and clients at random moments: `make kill`; figures in docs/reliability.md.

    python bench/kill.py [--kills 200] [--model smollm2:135m | --fake] [--state FILE] [--seconds N]

Kill N of a run is the same in every run, but for its moment. --state: what was seen is kept there, and a run goes on
where the last one stopped; --seconds: after so long this one does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from fake_server import FakeServer  # noqa: E402
from killing import LIMIT, Killed, kills  # noqa: E402

from octavo.weights.fetch import resolve  # noqa: E402


def report(killed: Killed) -> bool:
    for victim, ends in killed.ends.items():
        what = "its blocks are free" if victim == "client" else "the last stream has ended"
        ends = sorted(ends) or [math.nan]
        print(
            f"{victim:<7} {len(ends):>4} kills: {what} after p50 {ends[len(ends) // 2]:.3f} s, at most {ends[-1]:.3f} s"
        )
    restarts = sorted(killed.restarts) or [math.nan]
    print(f"a new server answers after p50 {restarts[len(restarts) // 2]:.2f} s, at most {restarts[-1]:.2f} s")
    print(f"faults: {len(killed.faults)}; measured anew, since the machine stood still: {killed.stood}")
    for fault in killed.faults:
        print(f"  {fault}")
    slowest = max((max(ends, default=0.0) for ends in killed.ends.values()), default=0.0)
    return not killed.faults and slowest < LIMIT


def main() -> int:
    parser = argparse.ArgumentParser(description="the end of any process at any moment")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--fake", action="store_true", help="an engine that costs nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    args = parser.parse_args()
    known = args.state is not None and args.state.exists()
    model, killed = resolve(args.model), Killed(**json.loads(args.state.read_text())) if known else Killed()
    machine = {"step_seconds": 0.002, "vocab_size": 49152} if args.fake else None
    deadline = time.monotonic() + args.seconds

    def numbers() -> Iterator[int]:
        while killed.count < args.kills and time.monotonic() < deadline:
            yield killed.count
            if args.state is not None:
                args.state.write_text(json.dumps(asdict(killed)))

    with tempfile.TemporaryDirectory() as folder:

        def start(port: int | None = None) -> FakeServer:
            serve = {"admin_socket": f"{folder}/operator"}
            options = {"machine": machine, "serve": serve, "real": not args.fake, "port": port}
            return FakeServer(model, f"{folder}/log", **options).announced()

        kills(start, numbers(), random.Random(args.seed + killed.count), killed, tokens=1500, longest=0.5)
    good = report(killed)
    print(f"{killed.count} of {args.kills} kills")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
