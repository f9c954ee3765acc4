"""`octavo ls` and `octavo rm MODEL`: what the cache holds."""

from __future__ import annotations

import argparse

from octavo.cli.screen import human, table
from octavo.weights import fetch


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    if command == "rm":
        parser.add_argument("model", help="a name that `octavo ls` shows")
    else:
        parser.add_argument("--names", action="store_true", help="names alone, one a line")


def run(args: argparse.Namespace) -> int:
    if args.command == "rm":
        print(f"removed {args.model}, {human(fetch.remove(args.model))}")
        return 0
    rows = fetch.list_models()
    if args.names:
        print("".join(f"{row.name}\n" for row in rows), end="")
    elif rows:
        table("", ("model", "size", "format", "path"), [(r.name, human(r.bytes), r.format, str(r.path)) for r in rows])
    else:
        print("no models yet; `octavo pull smollm2:135m` brings a small one")
    return 0
