"""Which executors this build has, and what an engine at rest must show."""

import time
from importlib.util import find_spec

EXECUTORS = ["reference"] if find_spec("torch") else []
if find_spec("octavo._native") and find_spec("octavo.backends.native.executor"):
    EXECUTORS.append("native")


def settle(llm):
    """Waits until the engine has heard of late stops and closed streams; then everything is free."""
    while llm.stats().running or llm.stats().waiting:
        time.sleep(0.002)
    assert_all_free(llm.stats())


def assert_all_free(stats):
    """After idle: no request, every block free or cached."""
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
