"""docs/cli.md is what the parsers say; the flags are the ones that it lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_reference_is_current():
    made = subprocess.run([sys.executable, "-m", "octavo.cli.reference"], check=True, capture_output=True, text=True)
    assert (ROOT / "docs" / "cli.md").read_text() == made.stdout, "run `make docs`"
