"""A client that leaves gives its blocks back within two steps, wherever its request stands, streamed or not."""

import threading

import fake_engine
import pytest
from asking import Asked, until
from chain_model import write_chain

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.server.app import create_app
from octavo.server.config import ServerConfig

CHUNK, PROMPT = 16, 200
STATES = {"first chunk": 0, "in the prompt": 5, "last chunk": PROMPT // CHUNK, "decoding": PROMPT // CHUNK + 9}


@pytest.fixture
def gate():
    """Holds a step's end until it is released."""
    return threading.Semaphore(0)


@pytest.fixture
def llm(tmp_path, monkeypatch, gate):
    fake_engine.install(monkeypatch)
    config = EngineConfig(model=write_chain(tmp_path / "chain"), max_num_batched_tokens=CHUNK, num_blocks=64)
    llm = AsyncLLM(config)
    yield llm
    gate.release(10**6)
    llm.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", STATES.values(), ids=STATES)
@pytest.mark.parametrize("neighbour", [False, True], ids=["alone", "beside another"])
async def test_blocks_are_free_within_two_steps(llm, gate, steps, stream, neighbour):
    app, loop = create_app(llm, ServerConfig()), llm._engine._loop
    runner, scheduler = loop._runner, loop._scheduler
    held = threading.Event()

    def wait():
        held.set()
        gate.acquire()
        held.clear()

    runner.gate = wait

    def ask(prompt, tokens):
        fields = {"model": "default", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        return Asked(app, "POST", "/v1/completions", fields)

    leaver = ask(list(range(40, 40 + PROMPT)), 50)
    await until(lambda: llm.unfinished == 1)
    stays = ask([65, 66, 67], 400) if neighbour else None
    await until(lambda: llm.unfinished == 1 + neighbour)
    if steps:
        gate.release(steps)
    await until(lambda: runner.steps == steps and held.is_set())
    (name,) = [name for name in scheduler.ledger.holdings if len(runner.known[name].prompt_ids) == PROMPT]
    told = loop._inbox.qsize()
    leaver.leave()
    await until(lambda: loop._inbox.qsize() > told)  # the engine is told, in the middle of a step
    gate.release(2)
    await until(lambda: name not in scheduler.ledger.holdings)
    assert runner.steps <= steps + 2 and scheduler.num_running + scheduler.num_waiting == int(neighbour)
    (pool,) = scheduler.ledger.pools
    assert pool.usable - len(pool.free) - len(pool.idle) <= 2 * neighbour
    await leaver.task
    if stays is not None:
        gate.release(10**6)
        await stays.task
        assert stays.status == 200
    assert not app.routes[0].endpoint.service.state.open
