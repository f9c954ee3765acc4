"""Which machine is meant: this one, a device by name, a file."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.backends.native.executor import choose_isa
from octavo.errors import UsageError
from octavo.runner import machine
from octavo.runner.calibration import Calibration, calibrated
from octavo.sim.machine import DEVICES, MachineModel, from_file
from octavo.weights.fetch import cache_home

# Outside operators, of a step and of each of its rows; of a process without its model. Typical of one core of a server;
# `octavo calibrate MODEL` measures them.
STEP, ROW, PROCESS = 150e-6, 10e-6, 85 << 20
ENTRY = 260.0  # bytes that a tokenizer takes for each entry of its vocabulary


def machine_file() -> Path:
    """Where `octavo calibrate` keeps what it found out about this machine."""
    return cache_home() / "machine.toml"


def machine_of(name: str) -> tuple[MachineModel, tuple[str, ...]]:
    """With notes. Raises UsageError, MissingFileError, ConfigError."""
    if name == "this":
        if machine_file().is_file():
            return from_file(machine_file()), ()
        found, notes = this_machine()
        return found, (*notes, "`octavo calibrate MODEL` measures operators here: predictions are closer with it")
    if name.lower() in DEVICES:
        return DEVICES[name.lower()], ()
    if not Path(name).suffix and not Path(name).exists():
        raise UsageError(f"--machine {name}: this, {', '.join(DEVICES)}, or a file", param="machine")
    return from_file(Path(name)), ()


def is_host(name: str, machine: MachineModel) -> bool:
    """Whether the native kernels run there, which eat integers and keep blocks of 16 tokens."""
    return name == "this" or machine.measured


def this_machine() -> tuple[MachineModel, tuple[str, ...]]:
    """Its roofs, measured in a second or two unless they are kept; nothing of its operators."""
    isa, _ = choose_isa(os.environ.get("OCTAVO_ISA") or None)
    calibration, notes = calibrated(isa, machine.topology().threads)
    return of_calibration(calibration), notes


def of_calibration(found: Calibration) -> MachineModel:
    threads = found.key.threads
    pages = found.random[threads]
    kinds = ("f32", "bf16", "int8")
    return MachineModel(
        name=f"this machine ({found.key.processor.split(' model')[0]}, {threads} threads, {found.key.isa})",
        memory=machine.memory()[0],
        read=found.sequential[threads],
        pages=pages[min(pages)],
        products={kind: found.product_rate(kind) for kind in kinds},
        barrier=found.barrier if threads > 1 else 0.0,
        step=STEP,
        row=ROW,
        process=PROCESS,
        entry=ENTRY,
    )
