"""A tiny model on disk, and engines over it by every executor that this build has."""

import time
from importlib.util import find_spec

import pytest
from tiny_model import write_model

from octavo import LLM

EXECUTORS = ["reference"] if find_spec("torch") else []
if find_spec("octavo._native") and find_spec("octavo.backends.native.executor"):
    EXECUTORS.append("native")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", params=EXECUTORS)
def executor(request):
    return request.param


@pytest.fixture(scope="session")
def shared(model, executor):
    """One engine that many tests share: whatever they leave in its prefix cache must change no token."""
    with LLM(model, executor=executor, threads=1, num_blocks=128) as llm:
        yield llm
        settle(llm)


@pytest.fixture
def make_llm(model, executor):
    """make_llm(**options): an engine of one's own, closed at the end, its blocks all back."""
    made = []

    def make(**options):
        llm = LLM(model, executor=executor, threads=1, **{"num_blocks": 64, **options})
        made.append(llm)
        return llm

    yield make
    for llm in made:
        settle(llm)
        llm.close()


def settle(llm):
    """Waits until the engine has heard of late stops and closed streams; then everything is free."""
    while llm.stats().running or llm.stats().waiting:
        time.sleep(0.002)
    assert_all_free(llm.stats())


def assert_all_free(stats):
    """After idle: no request, every block free or cached."""
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
