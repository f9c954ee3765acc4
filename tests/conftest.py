"""Shared by all tests: one thread for torch, so that runs are equal and neighbours are not slowed; and under OCTAVO_ISA
below amx, proof at the end that nothing asked for the AMX class."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
BELOW_AMX = os.environ.get("OCTAVO_ISA") in ("portable", "avx2", "avx512")


@pytest.fixture(scope="session", autouse=True)
def tiles_stay_unasked() -> Iterator[None]:
    yield
    if BELOW_AMX:
        native = pytest.importorskip("octavo._native")
        assert not native.amx_wanted(), "a test asked for the AMX class"
