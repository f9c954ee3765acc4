"""A tiny model on disk, and engines over it by every executor that this build has."""

import pytest
from chain_model import write_chain
from engines import EXECUTORS, settle
from tiny_model import write_model

from octavo import LLM


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", params=EXECUTORS)
def executor(request):
    return request.param


@pytest.fixture(scope="session")
def shared(model, executor):
    """One engine that many tests share: whatever they leave in its prefix cache must change no token."""
    with LLM(model, executor=executor, threads=1, num_blocks=128, max_model_len=256) as llm:
        yield llm
        settle(llm)


@pytest.fixture
def make_llm(model, executor):
    """make_llm(**options): an engine of one's own, closed at the end, its blocks all back."""
    made = []

    def make(**options):
        llm = LLM(model, executor=executor, threads=1, **{"num_blocks": 64, "max_model_len": 256, **options})
        made.append(llm)
        return llm

    yield make
    for llm in made:
        settle(llm)
        llm.close()


# ---- for reported cases, on the native executor
@pytest.fixture(scope="session")
def chain_path(tmp_path_factory):
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="session")
def chain(chain_path):
    with LLM(chain_path, threads=1, num_blocks=64) as llm:
        yield llm
        settle(llm)


@pytest.fixture(scope="session")
def tiny(model):
    with LLM(model, threads=1, num_blocks=128) as llm:
        yield llm
        settle(llm)


@pytest.fixture
def open_llm(model):
    """open_llm(model, options): closed at the end, its blocks all back."""
    made = []

    def make(model=model, **options):
        made.append(LLM(str(model), threads=1, **{"num_blocks": 64, **options}))
        return made[-1]

    yield make
    for llm in made:
        settle(llm)
        llm.close()
