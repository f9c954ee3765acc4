"""Readings of /metrics, and what two of them say: rates, and percentiles of what came between."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"(octavo_\w+)(?:\{(.*)\})? (\S+)")
_BOUND = re.compile(r'(?:^|,)le="([^"]+)"')
_MODEL = re.compile(r'model="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Reading:
    """values: by name, summed over labels. buckets: of histograms, cumulative counts by upper bound. time: seconds."""

    time: float
    values: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]
    models: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, time: float) -> Reading:
        values: dict[str, float] = {}
        buckets: dict[str, dict[float, float]] = {}
        models: dict[str, None] = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            if match is None:
                continue
            name, labels, value = match[1], match[2] or "", float(match[3])
            if (bound := _BOUND.search(labels)) is not None:
                of_name = buckets.setdefault(name.removesuffix("_bucket"), {})
                of_name[float(bound[1])] = of_name.get(float(bound[1]), 0.0) + value
            else:
                values[name] = values.get(name, 0.0) + value
            if name == "octavo_model_info" and (model := _MODEL.search(labels)) is not None:
                models[model[1]] = None
        return cls(time, values, buckets, tuple(models))

    def value(self, name: str) -> float:
        return self.values.get(name, 0.0)


def rate(before: Reading, after: Reading, name: str) -> float:
    """Per second."""
    return (after.value(name) - before.value(name)) / max(after.time - before.time, 1e-9)


def percentile(before: Reading | None, after: Reading, name: str, q: float) -> float | None:
    """Of what came between two readings (or ever, without a first one), straight lines within a bucket; None of
    nothing. Past the last bound: that bound."""
    earlier = before.buckets.get(name, {}) if before is not None else {}
    counts = sorted((bound, count - earlier.get(bound, 0.0)) for bound, count in after.buckets.get(name, {}).items())
    if not counts or not counts[-1][1]:
        return None
    wanted, low, below = q * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            inside = (wanted - below) / max(count - below, 1e-9)
            return low if bound == float("inf") else low + (bound - low) * inside
        low, below = bound, count
    return low
