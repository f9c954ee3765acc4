"""`octavo replay FILE`: the plans of a journal (--journal) made again, row for row, without model or kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.errors import EngineError
from octavo.sim.replay import replay


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("file", help="a journal that an engine wrote with --journal")


def run(args: argparse.Namespace) -> int:
    found = replay(Path(args.file))
    what = (
        f"{found.plans:,} plans of {found.rows:,} rows, {found.requests:,} requests, "
        f"{found.cached_tokens:,} tokens from the cache, {found.preemptions:,} preemptions, "
        f"{found.drafts:,} drafts, {found.aborts:,} aborts"
    )
    if found.difference is not None:
        raise EngineError(f"{args.file}: after {what}: {found.difference}", code="replay_differs")
    print(f"{what}: every plan is the same")
    return 0
