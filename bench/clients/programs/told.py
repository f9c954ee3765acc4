"""What a program is told by its environment, and how it tells what it saw: a line `ok: WHAT` for each check.

OCTAVO_URL: the server's address without a path. OCTAVO_SCRIPTED: 1 where the model does what it is told, so that what
it says can be checked too; else the shapes alone are. OCTAVO_VECTORS: the name of a model that embeds.
"""

from __future__ import annotations

import os
import sys

URL = os.environ["OCTAVO_URL"]
SCRIPTED = os.environ.get("OCTAVO_SCRIPTED") == "1"
VECTORS = os.environ.get("OCTAVO_VECTORS", "")
MODEL = "default"
ORDER = 'call get_weather {"city": "Brno"}'  # the scripted model calls it


def ok(what: str, holds: object, seen: object = "") -> None:
    """holds: of every model."""
    if not holds:
        sys.exit(f"failed: {what}: {seen!r}")
    print(f"ok: {what}", flush=True)


def says(what: str, text: str | None, wanted: str) -> None:
    """Some text of any model, that very text of a scripted one."""
    ok(what, isinstance(text, str) and (not SCRIPTED or wanted in text), text)
