"""What this machine allows: reading by footprint, products by kind, the cost of a barrier; measured once, kept on disk.

Every figure is the best of its samples: a roof, not an average. The file under the cache home is named after processor,
threads, class and version; one that is torn, edited or of another machine is measured anew, and that is said.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from octavo import _native
from octavo.backends.native.executor import ISAS
from octavo.program.limits import Curve, at
from octavo.types import digest
from octavo.weights.fetch import cache_home

VERSION = 1  # of what is measured, and how
MIB = 2**20
FOOTPRINTS = tuple(int(size * MIB) for size in (0.5, 1, 2, 8, 16, 32, 64, 128, 256))  # bytes
RANDOM_FOOTPRINTS = (32 * MIB, 256 * MIB)
RANDOM_UNITS = (4096, 12288)  # bytes read in one piece
PRODUCTS = ("f32", "bf16", "int8", "bf16 tile", "int8 tile")  # the index is native's number
RETRIES = 2  # of a calibration that other work disturbed
READ_SECONDS, PRODUCT_SECONDS = 0.03, 0.01  # spent on one figure; the largest footprints take one pass at least


@dataclass(frozen=True, slots=True)
class Key:
    """What a calibration is of. isa: the class whose loops were run."""

    processor: str
    threads: int
    isa: str
    version: int = VERSION

    @property
    def path(self) -> Path:
        return cache_home() / "calibration" / f"{digest(*asdict(self).values()).hex()[:16]}.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Roofs by number of threads: one, and all of the key's. Bytes a second, operations a second, seconds.

    random: unit in bytes -> curve. products: kind -> operations a second, a multiply-add being two.
    """

    key: Key
    sequential: Mapping[int, Curve]
    random: Mapping[int, Mapping[int, Curve]]
    products: Mapping[int, Mapping[str, float]]
    barrier: float
    seconds: float = field(default=0.0, compare=False)  # that measuring took

    def read_rate(self, footprint: float, unit: int = 0) -> float:
        """Bytes a second of all threads. unit: bytes in one piece, in random order; 0: front to back."""
        threads = self.key.threads
        if not unit:
            return at(self.sequential[threads], footprint)
        curves = self.random[threads]
        return at(curves[min(curves, key=lambda size: abs(math.log(size / unit)))], footprint)

    @property
    def disturbed(self) -> bool:
        """All threads did less than one alone: something else held a core meanwhile."""
        alone, together = self.figures(1), self.figures(self.key.threads)
        return any(many < 0.8 * one for one, many in zip(alone, together, strict=True))

    def figures(self, threads: int) -> list[float]:
        """Every rate of so many threads."""
        curves = [self.sequential[threads], *self.random[threads].values()]
        return [rate for curve in curves for _, rate in curve] + list(self.products[threads].values())

    def product_rate(self, kind: str) -> float:
        """Of all threads, in operations: of the class's best instruction for products of this kind."""
        rates = self.products[self.key.threads]
        return max(rates.get(kind, 0.0), rates.get(f"{kind} tile", 0.0)) or rates["f32"]


class Gauge:
    """Measures single figures on `threads` threads, over a buffer of `footprint` bytes that it holds."""

    def __init__(self, isa: str, threads: int, footprint: int) -> None:
        self._native: Any = _native.Calibrator(ISAS.index(isa), threads, footprint)

    def read(self, threads: int, footprint: int, unit: int = 0, seconds: float = READ_SECONDS) -> float:
        """Bytes a second."""
        return 1 / min(self._native.read(threads, footprint, unit, seconds))

    def product(self, threads: int, kind: str, seconds: float = PRODUCT_SECONDS) -> float | None:
        """Operations a second; None where the class has no such product."""
        samples = self._native.products(threads, PRODUCTS.index(kind), seconds)
        return 1 / min(samples) if samples else None

    def barrier(self, threads: int) -> float:
        """Seconds of one."""
        return float(min(self._native.barriers(threads, PRODUCT_SECONDS)))


def calibrated(
    isa: str, threads: int, *, renew: bool = False, measure: Callable[[Key], Calibration] | None = None
) -> tuple[Calibration, tuple[str, ...]]:
    """The calibration of this machine, and notes: from disk, or measured now and kept. renew: always now."""
    key = Key(processor(), threads, isa)
    notes: list[str] = []
    if not renew and key.path.exists():
        try:
            return _read(key), ()
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            notes.append(f"{key.path}: not a calibration of this machine ({error}); measured anew")
    found = (measure or calibrate)(key)
    for _ in range(RETRIES):
        if not found.disturbed:
            break
        found = (measure or calibrate)(key)
    if found.disturbed:
        notes.append("other work disturbed the calibration: limits are too low, and are not kept")
        return found, tuple(notes)
    try:
        _write(found)
    except OSError as error:
        notes.append(f"{key.path}: cannot be written ({error.strerror}); the calibration is not kept")
    return found, tuple(notes)


def calibrate(key: Key) -> Calibration:
    """A second or two."""
    begun = time.monotonic()
    gauge = Gauge(key.isa, key.threads, FOOTPRINTS[-1])
    counts = sorted({1, key.threads})
    sequential = {n: tuple((size, gauge.read(n, size)) for size in FOOTPRINTS) for n in counts}
    random = {
        n: {unit: tuple((size, gauge.read(n, size, unit)) for size in RANDOM_FOOTPRINTS) for unit in RANDOM_UNITS}
        for n in counts
    }
    products = {n: {kind: rate for kind in PRODUCTS if (rate := gauge.product(n, kind)) is not None} for n in counts}
    return Calibration(key, sequential, random, products, gauge.barrier(key.threads), time.monotonic() - begun)


def processor() -> str:
    """Model, family and stepping of the first processor, in one line."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part")
    found: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found[name.strip()] = value.strip()
    return " ".join(found[name] for name in wanted if name in found) or "unknown"


def _write(calibration: Calibration) -> None:
    """Whole or not at all. The sum at the end tells a file that was cut off or changed."""
    path = calibration.key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps(asdict(calibration), indent=1)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(json.dumps({"calibration": json.loads(body), "sum": digest(body).hex()}, indent=1))
    os.replace(file.name, path)


def _read(key: Key) -> Calibration:
    """Raises ValueError, KeyError, TypeError or AttributeError for whatever _write did not write for this key."""
    document = json.loads(key.path.read_text())
    data = document["calibration"]
    if document["sum"] != digest(json.dumps(data, indent=1)).hex():
        raise ValueError("its sum is wrong")
    if Key(**data["key"]) != key:
        raise ValueError("it is of another processor, class or version")
    counts = sorted({1, key.threads})
    return Calibration(
        key=key,
        sequential={n: _curve(data["sequential"][str(n)]) for n in counts},
        random={n: {unit: _curve(data["random"][str(n)][str(unit)]) for unit in RANDOM_UNITS} for n in counts},
        products={n: {str(kind): float(rate) for kind, rate in data["products"][str(n)].items()} for n in counts},
        barrier=float(data["barrier"]),
        seconds=float(data["seconds"]),
    )


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    return tuple((int(size), float(rate)) for size, rate in points)
