"""Engines of several processes that have too few cores for all their threads: one steps, the others sleep.

Threads of a step meet at hundreds of barriers; where two engines step on the same cores, each barrier waits for the
system to run the thread that is last, and both lose more than half. A lock of the file that they share goes from engine
to engine, a step each; the system takes it from a process that dies.
"""

from __future__ import annotations

import fcntl
from typing import Protocol


class Turns(Protocol):
    """held: between take, which blocks, and give. Each is for one thread."""

    held: bool

    def take(self) -> None: ...

    def give(self) -> None: ...


class Alone:
    """The turns of an engine that nobody shares its cores with."""

    held = True

    def take(self) -> None:
        return

    def give(self) -> None:
        return


class SharedTurns:
    """descriptor: of a file that all these engines have inherited."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self.held = False

    def take(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        self.held = True

    def give(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        self.held = False
