"""`octavo doctor`: what this machine offers, whether the build uses it, and where models are kept."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib import metadata

from octavo import __version__
from octavo.backends.native.executor import choose_isa
from octavo.cli.screen import human, table
from octavo.runner import machine
from octavo.weights import fetch


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    found = machine.read()
    isa, notes = choose_isa(os.environ.get("OCTAVO_ISA") or None)
    models = fetch.list_models()
    held = f"{len(models)} model{'s' * (len(models) != 1)}"
    rows = [
        ("octavo", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("processor", f"{platform.machine()}, {found.cores} cores usable, {found.physical_cores} physical"),
        ("instruction sets", f"{', '.join(found.isas)} (in use: {isa})"),
        *(("warning", note) for note in notes),
        ("memory", f"{human(found.memory_free)} free of {human(found.memory_total)}"),
        ("model cache", f"{fetch.cache_home()}: {held}, {human(sum(m.bytes for m in models))}"),
        *((name, _version(name)) for name in ("numpy", "tokenizers", "torch", "huggingface-hub")),
    ]
    table("", ("", "found"), rows)
    return 0


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        extra = {"torch": "torch", "huggingface-hub": "hub"}.get(name)
        return f"not installed (pip install 'octavo[{extra}]')" if extra else "not installed"
