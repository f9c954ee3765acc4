"""One key floods, another sends one request: it starts within one round of the scheduler."""

import threading

import fake_engine
import pytest
from asking import Asked, until
from chain_model import write_chain

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import Key

SEQUENCES = 8


@pytest.fixture
def llm(tmp_path, monkeypatch):
    fake_engine.install(monkeypatch)
    llm = AsyncLLM(EngineConfig(model=write_chain(tmp_path / "chain"), max_num_seqs=SEQUENCES))
    yield llm
    llm.close()


@pytest.mark.parametrize("lengths", [(4,), (3, 9, 5, 7, 4)], ids=["places fall free together", "one by one"])
async def test_one_request_beside_a_flood_of_500(llm, lengths):
    keys = tuple(Key.of(key) for key in ("flood", "quiet"))
    config = ServerConfig(keys=keys, max_queued_requests=1000)
    app = create_app(llm, config)
    loop = llm._engine._loop
    runner, gate = loop._runner, threading.Semaphore(0)
    runner.gate = gate.acquire

    def ask(key, place):
        body = {"model": "default", "prompt": [66, 67 + place % 50], "max_tokens": lengths[place % len(lengths)]}
        return Asked(app, "POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})

    flood = [ask("flood", place) for place in range(500)]
    await until(lambda: len(llm._engine._sinks._sinks) == 500)
    gate.release(2)
    await until(lambda: len(loop._scheduler._running) == SEQUENCES and runner.steps == 2)
    before = set(runner.begun)
    quiet = ask("quiet", 0)
    await until(lambda: len(llm._engine._sinks._sinks) == 501)
    gate.release(10**6)
    await quiet.task
    assert quiet.status == 200
    later = [tenant for name, tenant in runner.begun.items() if name not in before]
    own = later.index(config.tenant("quiet"))
    assert own <= 1  # behind one request of the other key at most, of the 490 that wait
    for one in flood:
        await one.task
    assert {one.status for one in flood} == {200}
