"""Processor time of an idle `octavo serve`, its engine process included, in per cent of one core.

    PYTHONPATH=src python bench/idle.py MODEL [--seconds 30]

One request is answered first, so that every thread that serving starts has started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

SERVE = "import sys; from octavo.cli.main import main; sys.exit(main())"
TICKS = os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """The process and all below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(stat(int(folder.name))[1])
        except OSError:
            continue  # ended meanwhile
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def stat(process: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ..."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def used(process: int) -> float:
    """Seconds of processor time of all its threads."""
    fields = stat(process)
    return (int(fields[11]) + int(fields[12])) / TICKS


def answer(base: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 16}).encode()
    request = urllib.request.Request(f"{base}/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()


def main() -> None:
    parser = argparse.ArgumentParser(description="processor time of an idle server")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    command = [sys.executable, "-c", SERVE, "serve", args.model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            base = next(found[0] for line in server.stdout if (found := re.search(r"http://[\w.:\[\]]+", line)))
            with urllib.request.urlopen(f"{base}/v1/models") as reply:
                model = json.load(reply)["data"][0]["id"]
            answer(base, model)
            time.sleep(2)
            before = {process: used(process) for process in family(server.pid)}
            time.sleep(args.seconds)
            for process, seconds in before.items():
                spent = used(process) - seconds
                print(f"process {process}: {spent:.2f} s of {args.seconds:.0f} s, {spent / args.seconds:.2%} of a core")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
