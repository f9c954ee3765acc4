"""Shared by all tests: one thread for torch, so that runs are equal and neighbours are not slowed; and under OCTAVO_ISA
below amx, proof at the end that nothing asked for the AMX class.

Workers of a parallel run keep to a core each: threads that wait for one another at barriers would otherwise spin
through the time slices of another worker's threads.
"""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
BELOW_AMX = os.environ.get("OCTAVO_ISA") in ("portable", "avx2", "avx512")

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
if _WORKER.isdigit() and hasattr(os, "sched_setaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_CORES[int(_WORKER) % len(_CORES)]})


@pytest.fixture(scope="session", autouse=True)
def tiles_stay_unasked() -> Iterator[None]:
    yield
    if BELOW_AMX:
        native = pytest.importorskip("octavo._native")
        assert not native.amx_wanted(), "a test asked for the AMX class"
