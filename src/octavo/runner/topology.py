"""Which processors this process may use: affinity, hyper-threads, NUMA nodes, caches and the control group's limit.

Read from the system's files, once; `root` is another tree in tests. Where a file is missing, its fact is unknown and
nothing is guessed from it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Topology:
    """cores: the usable hyper-threads of each physical core. nodes: NUMA node -> its usable ones. quota: processors'
    worth of time that the control group grants. caches: L1d, L2, L3 -> bytes, of the first core."""

    online: int
    cores: tuple[tuple[int, ...], ...]
    nodes: dict[int, tuple[int, ...]]
    quota: float | None
    caches: dict[str, int]

    @property
    def usable(self) -> tuple[int, ...]:
        return tuple(sorted(number for core in self.cores for number in core))

    @property
    def threads(self) -> int:
        """The default: a physical core each, as many as the control group lets run all the time."""
        granted = len(self.cores) if self.quota is None else int(self.quota)
        return max(1, min(len(self.cores), granted))

    def remarks(self) -> tuple[str, ...]:
        """What follows, one line each."""
        lines = []
        spare = len(self.usable) - len(self.cores)
        if self.online > len(self.usable):
            lines.append(f"{self.online - len(self.usable)} of {self.online} processors are outside this affinity mask")
        if spare:
            lines.append(f"{spare} hyper-threads get no thread: two on one core share its vector units")
        if self.threads < len(self.cores):
            lines.append(
                f"the control group grants the time of {self.quota:g} processors: a thread more would be stopped"
            )
        if len(self.nodes) > 1:
            lines.append(f"{len(self.nodes)} NUMA nodes: numactl keeps a process and its weights on one of them")
        if 1 < self.threads == len(self.usable):
            lines.append("as many threads as processors: during a step each keeps to one, where the system allows it")
        else:
            lines.append("threads are not pinned: the system may move them off a core that another process needs")
        return tuple(lines)


def read(root: Path = Path("/"), affinity: Collection[int] | None = None) -> Topology:
    """affinity: processors that may be used; None asks the system."""
    online = parse_list(_text(root / CPUS / "online")) or tuple(range(os.cpu_count() or 1))
    if affinity is None:
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else online
    usable = tuple(sorted(affinity))
    cores: dict[tuple[int, ...], list[int]] = {}
    for number in usable:
        siblings = parse_list(_text(root / CPUS / f"cpu{number}/topology/thread_siblings_list")) or (number,)
        cores.setdefault(siblings, []).append(number)
    return Topology(
        online=max(len(online), len(usable)),
        cores=tuple(tuple(core) for core in cores.values()),
        nodes=_nodes(root, usable),
        quota=_quota(root),
        caches=_caches(root / CPUS / f"cpu{usable[0]}/cache"),
    )


def parse_list(text: str) -> tuple[int, ...]:
    """The numbers of a list such as 0-3,8."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def _nodes(root: Path, usable: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    nodes = {}
    for folder in sorted((root / NODES).glob("node[0-9]*")):
        mine = tuple(number for number in parse_list(_text(folder / "cpulist")) if number in usable)
        if mine:
            nodes[int(folder.name.removeprefix("node"))] = mine
    return nodes


def _caches(folder: Path) -> dict[str, int]:
    sizes = {}
    for index in sorted(folder.glob("index[0-9]*")):
        kind, level, size = (_text(index / name) for name in ("type", "level", "size"))
        if kind == "Instruction" or not size:
            continue
        sizes[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size.rstrip("KMG")) * UNITS.get(size[-1], 1)
    return sizes


def _quota(root: Path) -> float | None:
    """The tightest limit of this process's control group and of those above it; version 2, then version 1."""
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("sys/fs/cgroup",) if not controllers else ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"):
            folder = Path(path.strip("/"))
            for each in (folder, *folder.parents):
                limits.append(_limit(root / mount / each))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(folder: Path) -> float | None:
    fields = _text(folder / "cpu.max").split()
    if not fields:
        fields = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
    quota, period = fields if len(fields) == 2 else ("", "")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
