"""Runs the policy room with other source: `patched(file, source)` swaps the functions of one file for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import octavo.policy.scheduler  # noqa: F401  (loads the whole room)

ROOM = "octavo.policy."


def source_of(name: str) -> str:
    return Path(str(sys.modules[ROOM + name].__file__)).read_text()


def room() -> list[ModuleType]:
    """The room and its tests, which import from it by name."""
    return [module for name, module in sys.modules.items() if name.startswith((ROOM, "policy."))]


@contextmanager
def patched(name: str, code: CodeType | str) -> Iterator[None]:
    """Methods of the file's classes, its functions and constants are those of `code`, wherever they were imported."""
    module = sys.modules[ROOM + name]
    scratch = dict(module.__dict__)
    exec(code if isinstance(code, CodeType) else compile(code, f"<{name}>", "exec"), scratch)
    undo: list[tuple[object, str, object]] = []
    for key, new in scratch.items():
        old = module.__dict__.get(key)
        if new is old or key.startswith("__"):
            continue
        if isinstance(old, type) and isinstance(new, type):
            for attr, value in vars(new).items():
                if isinstance(value, (FunctionType, property, staticmethod)) and attr in vars(old):
                    undo.append((old, attr, vars(old)[attr]))
                    setattr(old, attr, value)
        elif isinstance(old, (FunctionType, int)):
            for user in [user for user in room() if user.__dict__.get(key) is old]:
                undo.append((user, key, old))
                setattr(user, key, new)
    try:
        yield
    finally:
        for owner, key, old in reversed(undo):
            setattr(owner, key, old)
