"""Threads and cores: as many threads as cores keep to one each while a job runs, and the caller gets its own back."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
from octavo import _native
cores = set(range(os.cpu_count()))
os.sched_setaffinity(0, cores)
cores = os.sched_getaffinity(0)
own = set(os.listdir("/proc/self/task"))
_native.Calibrator(0, len(cores), 1 << 22).barriers(len(cores), 0.001)
assert os.sched_getaffinity(0) == cores, "the caller does not have its cores back"
workers = sorted(int(task) for task in set(os.listdir("/proc/self/task")) - own)
kept = [os.sched_getaffinity(task) for task in workers]
assert all(len(core) == 1 for core in kept) and len(set().union(*kept)) == len(cores) - 1, kept
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2, reason="one core")
def test_workers_keep_to_a_core_and_the_caller_is_let_go():
    subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
