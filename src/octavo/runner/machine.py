"""Facts of the machine, read once: processors, instruction sets, memory within the container's limits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from octavo.backends.native.executor import available_isas
from octavo.runner.topology import Topology
from octavo.runner.topology import read as read_topology
from octavo.types import Machine

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@cache
def topology() -> Topology:
    return read_topology()


def memory() -> tuple[int, int]:
    """(total, free) bytes; the tighter of the machine and the control group. Free counts reclaimable page cache."""
    fields = dict(line.split(":", 1) for line in (_text("/proc/meminfo") or "").splitlines())
    total = _kib(fields.get("MemTotal"), 0)
    free = _kib(fields.get("MemAvailable"), total)
    for limit_path, usage_path in _CGROUP_LIMITS:
        limit, usage = _text(limit_path), _text(usage_path)
        if limit and usage and limit.isdigit() and int(limit) < total:
            total = int(limit)
            free = min(free, max(total - int(usage) + _cgroup_cache(Path(limit_path).parent), 0))
    return total, free


def read() -> Machine:
    found = topology()
    total, free = memory()
    return Machine(len(found.usable), len(found.cores), available_isas(), total, free)


def _cgroup_cache(folder: Path) -> int:
    """Bytes of file cache that the control group could give back."""
    for line in (_text(str(folder / "memory.stat")) or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _kib(field: str | None, default: int) -> int:
    return int(field.split()[0]) * 1024 if field else default


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
