"""Who goes first where cores are few: the threads of a step, before what a server does for its clients beside it.

A thread that wakes takes the core from one that runs, and a step waits for its slowest thread: a server that writes to
hundreds of clients would stop a step as often. Under Linux's batch policy it gets a core that is free, or its turn.
"""

from __future__ import annotations

import contextlib
import os


def stand_back() -> None:
    """This thread, and threads and processes that it starts from now on."""
    _policy("SCHED_BATCH")


def as_usual() -> None:
    """For a process that one which stands back has started."""
    _policy("SCHED_OTHER")


def _policy(name: str) -> None:
    """Left as it is where there is no such thing, and where a sandbox forbids it."""
    policy = getattr(os, name, None)
    if policy is not None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))
