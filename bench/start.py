"""What users wait for: `octavo --help`, process start to first token, the size of an environment without torch.

    python bench/start.py MODEL [--environment]

Whole processes, warm file cache; minimum and median of the runs. --environment installs into a fresh virtual
environment (a minute) and adds up its files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OCTAVO = str(Path(sys.executable).with_name("octavo"))


def whole(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def first_byte(command: list[str]) -> float:
    """Seconds from process start to the first byte of its answer."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdout is not None
        byte = process.stdout.read(1)
        took = time.perf_counter() - start
        process.stdout.read()
    if not byte or process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return took


def report(name: str, seconds: list[float]) -> None:
    low, middle = min(seconds) * 1e3, statistics.median(seconds) * 1e3
    print(f"{name:<44} min {low:7.0f} ms   median {middle:7.0f} ms", flush=True)


def environment_bytes() -> int:
    """Installed bytes of a fresh environment with Octavo and what it needs, pip itself included."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
        return sum(file.lstat().st_size for file in Path(folder).rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description="what users wait for")
    parser.add_argument("model")
    parser.add_argument("--environment", action="store_true")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    report("octavo --help", [whole([OCTAVO, "--help"]) for _ in range(9)])
    answer = [OCTAVO, "run", args.model, "What is the capital of France?", "--max-tokens", "8"]
    first_byte(answer)
    report(f"start to first token, {args.model}", [first_byte(answer) for _ in range(5)])
    if args.environment:
        print(f"{'environment without torch':<44} {environment_bytes() / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
