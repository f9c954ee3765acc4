"""`octavo pull MODEL`: bring a model into the cache, checked and atomic; a second pull does nothing."""

from __future__ import annotations

import argparse

from octavo.cli.screen import human, progress
from octavo.weights import fetch


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="smollm2:135m, or hf:ORG/NAME[:QUANT]")


def run(args: argparse.Namespace) -> int:
    with progress(f"pull {args.model}") as advance:
        path = fetch.pull(args.model, lambda stage, done, total: advance(done, total))
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    print(f"{path}  {human(sum(file.stat().st_size for file in files))}")
    return 0
