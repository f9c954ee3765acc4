"""What one process of `octavo load` can send, and how true its times are: an endpoint that answers after known times.

    PYTHONPATH=src python bench/sending.py [--rates 100,500,1000] [--seconds 6]

The bar: all answered, and sent no later than 10 ms after they were due at the 99th percentile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ENDPOINT = Path(__file__).resolve().parents[1] / "tests" / "load" / "fake_endpoint.py"
FIRST, GAP, PIECES = 0.02, 0.01, 8  # seconds, seconds, pieces of output
LATEST = 0.010  # seconds
LOAD = "import sys; from octavo.cli.main import main; sys.exit(main())"


def summary(url: str, rate: float, seconds: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        words = ["load", url, "--rate", str(rate), "--duration", str(seconds), "--json", str(path)]
        subprocess.run([sys.executable, "-c", LOAD, *words], check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(path.read_text())["summary"])


def main() -> None:
    parser = argparse.ArgumentParser(description="how much one process of `octavo load` sends")
    parser.add_argument("--rates", default="100,500,1000", help="requests per second, comma-separated")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    args = parser.parse_args()
    words = [sys.executable, str(ENDPOINT), str(FIRST), str(GAP), str(PIECES)]
    failed = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as endpoint:
        assert endpoint.stdout is not None
        url = f"http://127.0.0.1:{int(endpoint.stdout.readline())}"
        print(f"the truth: first token {FIRST * 1000:g} ms, gaps {GAP * 1000:g} ms")
        print(
            "| requests per second | answered | first token p50 / p99, ms | gap p50 / p99, ms | sent late by p99, ms |"
        )
        for rate in map(float, args.rates.split(",")):
            found = summary(url, rate, args.seconds)
            first, gap, lag = found["ttft"], found["gap"], found["lag"]
            cells = [f"{rate:,g}", f"{found['succeeded']:,} of {found['requests']:,}"]
            cells += [f"{each['p50'] * 1000:.1f} / {each['p99'] * 1000:.1f}" for each in (first, gap)]
            print(f"| {' | '.join(cells)} | {lag['p99'] * 1000:.1f} |")
            if found["failed"] or lag["p99"] > LATEST:
                failed.append(f"{rate:g}")
        endpoint.kill()
    if failed:
        raise SystemExit(f"the bar is missed at {', '.join(failed)} requests per second")


if __name__ == "__main__":
    main()
