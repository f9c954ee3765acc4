"""OCTAVO_ISA is a ceiling for the whole process: no class above it is entered, and the system is not asked for tiles.

Each case is a process of its own, since the ceiling is read once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

native = pytest.importorskip("octavo._native", reason="the native part is not built")
HERE = Path(__file__).parent
SESSION = """
from octavo import _native
from octavo.backends.native import executor
from octavo.runner import machine
from odd_model import odd_model
from test_native_executor import lowered, open_programs
program, tensors = odd_model()
session = open_programs({"main": lowered(program, tensors)}, tensors)
print(session.numerics.isa, executor.available_isas(), machine.read().isas, _native.amx_wanted())
"""


def run(code: str, isa: str | None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_ISA"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])}
    if isa:
        environment["OCTAVO_ISA"] = isa
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not native.isa_supported(1), reason="no AVX2 here")
def test_a_forced_class_is_the_highest_and_tiles_stay_unasked() -> None:
    here = ("portable", "avx2")
    assert run(SESSION, "avx2") == f"avx2 {here} {here} False"
    assert run(SESSION, "portable") == "portable ('portable',) ('portable',) False"


def test_without_one_the_best_class_is_looked_for() -> None:
    assert run(SESSION, None).endswith("True")


@pytest.mark.skipif(not native.isa_supported(1), reason="no AVX2 here")
def test_a_class_asked_for_by_name_goes_above_it() -> None:
    code = "from octavo.backends.native import executor as e; print(e.choose_isa('avx2'), e.available_isas())"
    assert run(code, "portable") == "('avx2', ()) ('portable', 'avx2')"
