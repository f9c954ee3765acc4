"""SIGKILL for engines, servers and clients at random moments: `make kill`; figures in docs/reliability.md.

python bench/kill.py [--kills 200] [--model smollm2:135m | --fake] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from fake_server import FakeServer  # noqa: E402
from killing import LIMIT, Killed, kills  # noqa: E402

from octavo.weights.fetch import resolve  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="the end of any process at any moment")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--fake", action="store_true", help="an engine that costs nothing")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, killed = resolve(args.model), Killed()
    machine = {"step_seconds": 0.002, "vocab_size": 49152} if args.fake else None
    with tempfile.TemporaryDirectory() as folder:

        def start(port: int | None = None) -> FakeServer:
            serve = {"admin_socket": f"{folder}/operator"}
            options = {"machine": machine, "serve": serve, "real": not args.fake, "port": port}
            return FakeServer(model, f"{folder}/log", **options).announced()

        kills(start, args.kills, random.Random(args.seed), killed, tokens=1500, longest=0.5)
    for victim, ends in killed.ends.items():
        what = "its blocks are free" if victim == "client" else "the last stream has ended"
        ends.sort()
        print(
            f"{victim:<7} {len(ends):>4} kills: {what} after p50 {ends[len(ends) // 2]:.3f} s, at most {ends[-1]:.3f} s"
        )
    print(f"a new server answers after p50 {sorted(killed.restarts)[len(killed.restarts) // 2]:.2f} s")
    print(f"faults: {len(killed.faults)}")
    for fault in killed.faults:
        print(f"  {fault}")
    slowest = max(max(ends) for ends in killed.ends.values())
    return 0 if not killed.faults and slowest < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
