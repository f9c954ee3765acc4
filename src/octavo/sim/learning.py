"""Corrections out of measured steps: what operators of a kind took over what the limits ask, by size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

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
    """By kind of operator: at each size a line through what its operators took over what the limits ask, of all samples
    with that many rows; the error of a kind is how far they lie from it, on average."""
    bare = replace(machine, corrections={})
    models: dict[int, StepModel] = {}
    seen: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for sample in samples:
        model = models.setdefault(id(sample.program), StepModel(sample.program, bare))
        here: dict[tuple[str, float, float], list[float]] = {}
        for (name, size, least), taken in zip(model.least(sample.shape), sample.seconds, strict=True):
            if least > 0 and taken > 0:
                here.setdefault((name, size, least), []).append(taken)
        for (name, size, least), taken_by_each in here.items():
            seen.setdefault(name, {}).setdefault(size, []).append((least, fmean(taken_by_each)))
    found = {}
    for name, sizes in seen.items():
        lines = {size: line(pairs) for size, pairs in sizes.items()}
        errors = [
            abs(lines[size][0] * least + lines[size][1] - taken) / taken
            for size, pairs in sizes.items()
            for least, taken in pairs
        ]
        found[name] = Correction(tuple((size, *lines[size]) for size in sorted(lines)), fmean(errors))
    return found


def line(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(factor, seconds besides) of (least, taken) pairs: least squares of relative errors, neither below 0."""
    weights = [1 / taken**2 for _, taken in pairs]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, pairs, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, pairs, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, pairs, strict=True))
    through = sum(w * x * y for w, (x, y) in zip(weights, pairs, strict=True)) / sum(
        w * x * x for w, (x, _) in zip(weights, pairs, strict=True)
    )
    if spread <= 1e-12 * total * mean_x**2:
        return through, 0.0
    factor = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, pairs, strict=True)) / spread
    besides = mean_y - factor * mean_x
    if besides < 0:
        return through, 0.0
    return (factor, besides) if factor > 0 else (0.0, mean_y)


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
