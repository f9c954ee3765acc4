"""A machine as foresight sees it: how fast it reads and multiplies, how much it holds, what a step costs besides.

Figures of devices are those of their data sheets, dense; what was measured on a machine comes from a file (TOML) that
`octavo calibrate` writes. Bytes, seconds, operations a second (a multiply-add is two).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError, MissingFileError
from octavo.program.limits import Curve, Roofs, at

GB, TERA = 10**9, 10**12
_CURVES = ("read", "pages")
_NUMBERS = ("memory", "link", "barrier", "step", "row", "process", "entry")


@dataclass(frozen=True, slots=True)
class Correction:
    """What one operator of a kind takes: factor times what the limits ask, and seconds besides. points: (size, factor,
    seconds), by rows of the step, or by bytes of cache or operations where contexts count. error: the mean that is
    left."""

    points: tuple[tuple[float, float, float], ...]
    error: float = 0.0

    def seconds(self, least: float, size: float) -> float:
        low = self.points[0]
        for high in self.points:
            if size <= high[0]:
                break
            low = high
        else:
            high = low
        if size <= low[0] or high[0] == low[0]:
            return low[1] * least + low[2]
        share = math.log(size / low[0]) / math.log(high[0] / low[0])
        return (low[1] + share * (high[1] - low[1])) * least + low[2] + share * (high[2] - low[2])


@dataclass(frozen=True, slots=True)
class MachineModel:
    """One device, or a host with all its cores.

    read: front to back, by footprint. pages: of the KV cache. products: by kind. link: to its neighbours, one way; 0
    without. barrier: between operators. step, row: outside operators, of a step and of each row in it. process: memory
    that the engine takes besides weights, cache and values; entry: and for each entry of the vocabulary, by a tokenizer
    in the same memory. corrections: by kind of operator. measured: its figures are of a machine, not of a data sheet.
    """

    name: str
    memory: int
    read: Curve
    pages: Curve
    products: Mapping[str, float]
    link: float = 0.0
    barrier: float = 0.0
    step: float = 0.0
    row: float = 0.0
    process: int = 0
    entry: float = 0.0
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    measured: bool = False

    def roofs(self, footprint: float) -> Roofs:
        return Roofs(
            footprint=int(footprint),
            weights=at(self.read, footprint),
            cache=at(self.pages, footprint),
            values=lambda size: at(self.read, size),
            products=self.products,
            barrier=self.barrier,
        )

    @property
    def bandwidth(self) -> float:
        """Of what no cache holds."""
        return self.read[-1][1]

    @property
    def ridge(self) -> float:
        """bf16 operations a byte at which reading and multiplying take as long."""
        return self.products["bf16"] / self.bandwidth


def _device(
    name: str, memory: float, bandwidth: float, tera_bf16: float, tera_int8: float, link: float
) -> MachineModel:
    """memory, bandwidth, link in GB. A step of a device: 10 us of launch, 2 us from operator to operator."""
    curve: Curve = ((1, bandwidth * GB),)
    products = {"f32": tera_bf16 / 16 * TERA, "bf16": tera_bf16 * TERA, "int8": tera_int8 * TERA}
    return MachineModel(name, int(memory * GB), curve, curve, products, link * GB, 2e-6, 200e-6, 2e-6, 2 * GB)


DEVICES: Mapping[str, MachineModel] = {
    model.name: model
    for model in (
        _device("a100", 80, 2040, 312, 624, 300),
        _device("h100", 80, 3350, 989, 1979, 450),
        _device("h200", 141, 4800, 989, 1979, 450),
        _device("b200", 180, 8000, 2250, 4500, 900),
    )
}


def from_file(path: Path) -> MachineModel:
    """Raises MissingFileError, ConfigError that name the file and the field."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a machine file: {error}") from None
    return from_mapping(data, str(path))


def from_mapping(data: Mapping[str, Any], where: str) -> MachineModel:
    """The fields of a machine file; those that are absent are a bare host's. Raises ConfigError."""
    known = {"name", "products", "corrections", *_CURVES, *_NUMBERS}
    for name in data:
        if name not in known:
            raise ConfigError(f"{where}: unknown field {name!r}: one of {', '.join(sorted(known))}")
    for name in ("memory", "read", "products"):
        if name not in data:
            raise ConfigError(f"{where}: {name} is required")
    read = _curve(data["read"], f"{where}: read")
    products = {kind: _number(data["products"].get(kind), f"{where}: products.{kind}") for kind in ("f32", "bf16")}
    products["int8"] = _number(data["products"].get("int8", products["bf16"]), f"{where}: products.int8")
    corrections = {
        kind: Correction(_triples(value.get("points"), f"{where}: corrections.{kind}"), float(value.get("error", 0.0)))
        for kind, value in data.get("corrections", {}).items()
    }
    found = MachineModel(
        name=str(data.get("name", where)),
        memory=int(_number(data["memory"], f"{where}: memory")),
        read=read,
        pages=_curve(data["pages"], f"{where}: pages") if "pages" in data else read,
        products=products,
        corrections=corrections,
        measured=bool(corrections),
    )
    for name in _NUMBERS[1:]:
        if name in data:
            value = _number(data[name], f"{where}: {name}", 0.0)
            found = replace(found, **{name: int(value) if name == "process" else value})  # type: ignore[arg-type]
    return found


def to_toml(machine: MachineModel) -> str:
    """What `from_file` reads."""
    lines = [f'name = "{machine.name}"', f"memory = {machine.memory}"]
    lines += [f"{name} = {getattr(machine, name)!r}" for name in _NUMBERS[1:]]
    for name in _CURVES:
        points = ", ".join(f"[{size}, {rate!r}]" for size, rate in getattr(machine, name))
        lines.append(f"{name} = [{points}]")
    lines += ["", "[products]", *(f"{kind} = {rate!r}" for kind, rate in machine.products.items())]
    for kind, correction in machine.corrections.items():
        points = ", ".join(f"[{size!r}, {factor!r}, {besides!r}]" for size, factor, besides in correction.points)
        lines += ["", f'[corrections."{kind}"]', f"points = [{points}]", f"error = {correction.error!r}"]
    return "\n".join(lines) + "\n"


def _number(value: Any, where: str, least: float = 1e-12) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e24:
        raise ConfigError(f"{where}: a number of at least {least:g}, not {value!r}")
    return float(value)


def _curve(value: Any, where: str) -> Curve:
    """One rate, or [footprint, rate] pairs that ascend."""
    if isinstance(value, (int, float)):
        return ((1, _number(value, where)),)
    return tuple((int(size), rate) for size, rate in _points(value, where))


def _points(value: Any, where: str) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: a list of pairs")
    found = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(f"{where}: a list of pairs")
        found.append((_number(pair[0], where), _number(pair[1], where)))
    if any(after[0] <= before[0] for before, after in pairwise(found)):
        raise ConfigError(f"{where}: the first numbers ascend")
    return tuple(found)


def _triples(value: Any, where: str) -> tuple[tuple[float, float, float], ...]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 3 for each in value):
        raise ConfigError(f"{where}: a list of [size, factor, seconds]")
    sizes = _points([[size, 1.0] for size, _, _ in value], where)
    rest = [(_number(factor, where, 0.0), _number(besides, where, 0.0)) for _, factor, besides in value]
    return tuple((size, *pair) for (size, _), pair in zip(sizes, rest, strict=True))
