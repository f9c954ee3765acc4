"""`octavo doctor`: what this machine offers, what follows for threads, and where models are kept."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import metadata

from octavo import __version__
from octavo.backends.native.executor import choose_isa
from octavo.cli.screen import human, table
from octavo.runner import machine
from octavo.runner.topology import Topology
from octavo.weights import fetch


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")


def run(args: argparse.Namespace) -> int:
    found, topology = machine.read(), machine.topology()
    isa, notes = choose_isa(os.environ.get("OCTAVO_ISA") or None)
    models = fetch.list_models()
    packages = {name: _version(name) for name in ("numpy", "tokenizers", "torch", "huggingface-hub")}
    if args.json:
        facts = {
            "octavo": __version__,
            "python": platform.python_version(),
            "isas": found.isas,
            "isa": isa,
            "online": topology.online,
            "cores": topology.cores,
            "nodes": topology.nodes,
            "quota": topology.quota,
            "caches": topology.caches,
            "threads": topology.threads,
            "remarks": topology.remarks(),
            "memory_total": found.memory_total,
            "memory_free": found.memory_free,
            "models": len(models),
            "packages": packages,
            "warnings": notes,
        }
        print(json.dumps(facts))
        return 0
    held = f"{len(models)} model{'s' * (len(models) != 1)}"
    rows = [
        ("octavo", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("processor", f"{platform.machine()}, {found.cores} cores usable, {found.physical_cores} physical"),
        *_machine_rows(topology),
        ("instruction sets", f"{', '.join(found.isas)} (in use: {isa})"),
        *(("warning", note) for note in notes),
        ("memory", f"{human(found.memory_free)} free of {human(found.memory_total)}"),
        ("model cache", f"{fetch.cache_home()}: {held}, {human(sum(m.bytes for m in models))}"),
        *packages.items(),
    ]
    table("", ("", "found"), rows)
    return 0


def _machine_rows(found: Topology) -> list[tuple[str, str]]:
    caches = ", ".join(f"{name} {human(size)}" for name, size in found.caches.items())
    nodes = "; ".join(f"{node}: {', '.join(map(str, cpus))}" for node, cpus in found.nodes.items())
    quota = "none" if found.quota is None else f"{found.quota:g} processors"
    return [
        ("caches", caches or "unknown"),
        ("NUMA nodes", nodes or "unknown"),
        ("processor limit", quota),
        ("threads", f"{found.threads} by default, for {len(found.cores)} physical cores"),
        *(("", remark) for remark in found.remarks()),
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        extra = {"torch": "torch", "huggingface-hub": "hub"}.get(name)
        return f"not installed (pip install 'octavo[{extra}]')" if extra else "not installed"
