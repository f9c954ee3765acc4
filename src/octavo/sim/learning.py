"""Corrections out of measured steps: what operators of a kind took over what the limits ask, by size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.program.ir import Program
from octavo.sim.machine import Correction, MachineModel
from octavo.sim.steps import StepModel
from octavo.types import StepShape


@dataclass(frozen=True, slots=True)
class Sample:
    """seconds: of each operator of the program, in order."""

    program: Program
    shape: StepShape
    seconds: Sequence[float]


def corrections(machine: MachineModel, samples: Iterable[Sample]) -> dict[str, Correction]:
    """By kind of operator. Of one size, the factors of several samples are averaged, weighted by their time; the error
    of a kind is how far its samples lie from that, on average."""
    bare = replace(machine, corrections={})
    models: dict[int, StepModel] = {}
    sums: dict[str, dict[float, tuple[float, float]]] = {}
    seen: list[tuple[str, float, float, float]] = []
    for sample in samples:
        model = models.setdefault(id(sample.program), StepModel(sample.program, bare))
        here: dict[tuple[str, float], tuple[float, float]] = {}
        for (name, size, least), taken in zip(model.least(sample.shape), sample.seconds, strict=True):
            before = here.get((name, size), (0.0, 0.0))
            here[name, size] = before[0] + least, before[1] + taken
        for (name, size), (least, taken) in here.items():
            if least <= 0 or taken <= 0:
                continue
            seen.append((name, size, least, taken))
            sizes = sums.setdefault(name, {})
            total = sizes.get(size, (0.0, 0.0))
            sizes[size] = total[0] + least, total[1] + taken
    return {
        name: Correction(
            tuple((size, taken / least) for size, (least, taken) in sorted(sizes.items())), _error(name, sizes, seen)
        )
        for name, sizes in sums.items()
    }


def _error(
    name: str, sizes: Mapping[float, tuple[float, float]], seen: Iterable[tuple[str, float, float, float]]
) -> float:
    distances = [
        abs(math.log(taken / least / (sizes[size][1] / sizes[size][0])))
        for kind, size, least, taken in seen
        if kind == name
    ]
    return sum(distances) / max(len(distances), 1)


def beside(batches: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(seconds of a step, seconds of each row in it) outside operators, by least squares, neither below 0."""
    count = len(batches)
    mean_batch, mean = sum(batches) / count, sum(seconds) / count
    spread = sum((batch - mean_batch) ** 2 for batch in batches)
    slope = (
        sum((b - mean_batch) * (s - mean) for b, s in zip(batches, seconds, strict=True)) / spread if spread else 0.0
    )
    slope = max(slope, 0.0)
    return max(mean - slope * mean_batch, 0.0), slope
