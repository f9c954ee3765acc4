"""What a machine's files say about its processors: fake trees of the system's files."""

import pytest

from octavo.runner.topology import parse_list, read


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def tree(root, cores, hyper=1, nodes=1, **files):
    """`cores` physical cores with `hyper` threads each, numbered as Linux does: first all first threads."""
    count = cores * hyper
    out = {"sys/devices/system/cpu/online": f"0-{count - 1}"}
    for number in range(count):
        siblings = ",".join(str(n) for n in range(number % cores, count, cores))
        out[f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"] = siblings
        cache = f"sys/devices/system/cpu/cpu{number}/cache"
        for index, (kind, level, size) in enumerate(
            (("Data", 1, "48K"), ("Instruction", 1, "32K"), ("Unified", 2, "2048K"), ("Unified", 3, "32M"))
        ):
            out |= {
                f"{cache}/index{index}/{n}": str(v)
                for n, v in zip(("type", "level", "size"), (kind, level, size), strict=True)
            }
    for node in range(nodes):
        mine = [n for n in range(count) if n % cores * nodes // cores == node]
        out[f"sys/devices/system/node/node{node}/cpulist"] = ",".join(map(str, mine))
    return write(root, out | files)


def test_lists_of_processors():
    assert parse_list("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_list("") == ()


def test_hyper_threads_count_once_and_stay_unused(tmp_path):
    found = read(tree(tmp_path, 4, hyper=2), range(8))
    assert found.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert found.threads == 4
    assert any(line.startswith("4 hyper-threads get no thread") for line in found.remarks())


def test_affinity_narrows_cores_and_nodes(tmp_path):
    found = read(tree(tmp_path, 8, nodes=2), {1, 2, 6})
    assert found.usable == (1, 2, 6) and found.threads == 3
    assert found.nodes == {0: (1, 2), 1: (6,)}
    remarks = found.remarks()
    assert remarks[0] == "5 of 8 processors are outside this affinity mask"
    assert any("2 NUMA nodes" in line for line in remarks)


def test_caches_in_bytes_without_that_of_instructions(tmp_path):
    assert read(tree(tmp_path, 2), range(2)).caches == {"L1d": 48 << 10, "L2": 2 << 20, "L3": 32 << 20}


@pytest.mark.parametrize(
    ("files", "quota", "threads"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "250000 100000"}, 2.5, 2),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None, 4),
        # The group above may be the tighter one.
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/cpu.max": "50000 100000",
            },
            0.5,
            1,
        ),
        # Version 1, beside another controller of the hybrid layout.
        (
            {
                "proc/self/cgroup": "9:cpuset:/\n4:cpu,cpuacct:/job\n0::/",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            2.0,
            2,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
            4,
        ),
    ],
)
def test_the_control_group_limits_threads(tmp_path, files, quota, threads):
    found = read(tree(tmp_path, 4, **files), range(4))
    assert (found.quota, found.threads) == (quota, threads)
    assert any("control group" in line for line in found.remarks()) == (threads < 4)


def test_missing_files_leave_facts_unknown(tmp_path):
    found = read(tmp_path, {0, 3})
    assert found.cores == ((0,), (3,)) and found.threads == 2
    assert (found.nodes, found.quota, found.caches) == ({}, None, {})
