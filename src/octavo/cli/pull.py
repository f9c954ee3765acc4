"""`octavo pull MODEL`: bring a model into the cache, checked and atomic; a second pull does nothing."""

from __future__ import annotations

import argparse

from octavo.cli.screen import human, progress
from octavo.weights import fetch


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="smollm2:135m, or hf:ORG/NAME[:QUANT]")


def run(args: argparse.Namespace) -> int:
    before = {row.name for row in fetch.list_models()}
    with progress(f"pull {args.model}") as advance:
        path = fetch.pull(args.model, lambda stage, done, total: advance(done, total, stage))
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = human(sum(file.stat().st_size for file in files))
    print(f"{path}  {size}{', was here already' if args.model in before else ''}")
    return 0
