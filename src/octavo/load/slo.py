"""What counts as a good answer: bounds on a request's times, `ttft=500ms,gap=100ms`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from octavo.errors import UsageError
from octavo.load.record import Record

# name -> what it bounds, as reports say it
BOUNDS = {
    "ttft": "time to first token",
    "gap": "longest gap between two pieces of output",
    "tpot": "mean time of an output token after the first",
    "e2e": "time to the end of the answer",
}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


def parse_slo(text: str) -> dict[str, float]:
    """Seconds by name. Raises UsageError."""
    bounds = {}
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"\s*(\w+)=(\d+(?:\.\d+)?)(us|ms|s|)\s*", part)
        if found is None or found[1] not in BOUNDS or float(found[2]) == 0:
            raise UsageError(f"--slo {text}: write {','.join(f'{name}=500ms' for name in BOUNDS)}, or some of them")
        bounds[found[1]] = float(found[2]) * _UNITS[found[3]]
    return bounds


def is_good(record: Record, bounds: Mapping[str, float]) -> bool:
    """It ended well and within all bounds. What a request does not have (a gap, of one token) bounds nothing."""
    if record.error is not None:
        return False
    times = {
        "ttft": record.ttft,
        "gap": max(record.gaps, default=None),
        "tpot": record.tpot,
        "e2e": record.e2e,
    }
    return all(times[name] is None or times[name] <= bound for name, bound in bounds.items())  # type: ignore[operator]
