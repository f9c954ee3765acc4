"""Who else computes on this machine: measurements wait until nobody does, and count again what was disturbed.

Busy time of all cores comes from /proc/stat, time stolen by other guests of the host included; what our own processes
used is taken off. Where the system tells nothing (not Linux), nothing is ever disturbed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 0.08  # share of the cores' time that others may use while an engine is measured
PATIENCE = 8.0  # seconds to wait for quiet before measuring all the same
ENOUGH = 10.0  # seconds after which a disturbed measurement is not tried again
TICK = 1 / os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """Seconds that all cores together have worked since the system started."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, _read("/proc/stat").split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq + steal) * TICK


def _own(process: int) -> float:
    """Seconds that a process and its children that have ended worked; 0 for one that is gone."""
    try:
        fields = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) * TICK


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


class Watch:
    """Share of the cores' time that went to others since it began; `processes` are ours, besides this one."""

    def __init__(self, *processes: int) -> None:
        self._processes = (os.getpid(), *processes)
        self._begun, self._at = self._sum(), time.perf_counter()

    def _sum(self) -> float:
        return _busy() - sum(map(_own, self._processes))

    def share(self) -> float:
        seconds = (time.perf_counter() - self._at) * (os.cpu_count() or 1)
        return (self._sum() - self._begun) / seconds if seconds else 0.0


def undisturbed(measure: Callable[[], dict[str, float]], *processes: int) -> dict[str, float]:
    """What `measure` gives when the machine is ours; of the tries, the one that was disturbed least."""
    if not Path("/proc/stat").exists():
        return measure()
    found: list[tuple[float, dict[str, float]]] = []
    until = time.perf_counter() + ENOUGH
    while not found or time.perf_counter() < until:
        wait_for_quiet(*processes)
        watch = Watch(*processes)
        rates = measure()
        found.append((watch.share(), rates))
        if found[-1][0] < LIMIT:
            break
        print(f"others used {found[-1][0]:.0%} of the cores", flush=True)
    return min(found, key=lambda one: one[0])[1]


def wait_for_quiet(*processes: int) -> None:
    """Returns when others have used next to nothing for half a second, or after PATIENCE."""
    until = time.perf_counter() + PATIENCE
    while time.perf_counter() < until:
        watch = Watch(*processes)
        time.sleep(0.5)
        if watch.share() < LIMIT:
            return
