"""An object of one instruction-set class must export nothing that the linker may pick for another class, and hold no
instruction of a higher one.

A weak symbol (an inline function, a template of the standard library) compiled for AVX-512 could replace the copy that
a plain machine runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of every build here, whichever compiler; but not of build/sanitize, which nothing loads outside its own tests.
OBJECTS = sorted(path for path in (ROOT / "build").glob("**/isa_*.dir/**/*.o") if "sanitize" not in path.parts)


@pytest.mark.skipif(not OBJECTS, reason="the native part was not built in this tree")
@pytest.mark.skipif(not shutil.which("nm"), reason="no nm")
def test_class_objects_have_no_weak_symbols() -> None:
    symbols = 0
    for path in OBJECTS:
        listing = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        lines = [line.split(maxsplit=2) for line in listing.splitlines() if not line.startswith(" ")]
        weak = [fields[2] for fields in lines if len(fields) == 3 and fields[1] in "WVu"]
        assert not weak, f"{path.parts[-4]}: {weak}"
        symbols += len(lines)
    assert symbols > 0


WIDER = {
    "_native": r"%[yz]mm|%k[0-7]",
    "isa_portable": r"%[yz]mm|%k[0-7]",
    "isa_avx2": r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|[23]\d)",
}


@pytest.mark.skipif(not OBJECTS, reason="the native part was not built in this tree")
@pytest.mark.skipif(not shutil.which("objdump"), reason="no objdump")
@pytest.mark.parametrize("target", WIDER)
def test_objects_hold_no_instruction_of_a_higher_class(target: str) -> None:
    """Registers tell: those of 512 bits, masks and the upper sixteen are of AVX-512, those of 256 bits of AVX."""
    objects = sorted((ROOT / "build" / "dev").glob(f"**/{target}.dir/**/*.o"))
    for path in objects:
        code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True)
        found = re.search(WIDER[target], code.stdout)
        assert not found, f"{path.name}: {found}"
