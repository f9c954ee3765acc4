"""What a program is told by its environment, and how it tells what it saw: `ok: WHAT` or `failed: WHAT` for each check.

OCTAVO_URL: the server's address without a path. OCTAVO_SCRIPTED: 1 where the model does what it is told, so that what
it says can be checked too; else the shapes alone are. OCTAVO_VECTORS: the name of a model that embeds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

URL = os.environ["OCTAVO_URL"]
SCRIPTED = os.environ.get("OCTAVO_SCRIPTED") == "1"
VECTORS = os.environ.get("OCTAVO_VECTORS", "")
MODEL = "default"
FEW = 60 if SCRIPTED else 12  # tokens of an answer whose end does not matter
ORDER = 'call get_weather {"city": "Brno"}'  # the scripted model calls it


class Failed(Exception):
    pass


def ok(what: str, holds: object, seen: object = "") -> None:
    """holds: of every model."""
    if not holds:
        raise Failed(f"{what}: {seen!r}")
    print(f"ok: {what}", flush=True)


def says(what: str, text: str | None, wanted: str) -> None:
    """Some text of any model, that very text of a scripted one."""
    ok(what, isinstance(text, str) and (not SCRIPTED or wanted in text), text)


def run(parts: dict[str, Callable[[], None]]) -> None:
    """One after the other, whatever became of the one before; then the exit code."""
    failures = 0
    for name, part in parts.items():
        try:
            part()
        except Exception as error:
            failures += 1
            told = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"failed: {name}: {told[:300]}", flush=True)
    sys.exit(failures > 0)
