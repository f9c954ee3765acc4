"""While a long prompt is computed, a stream that asks for it hears how far it is."""

import json

import fake_engine
import pytest
from asking import Asked, until
from chain_model import write_chain

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.openai import job


@pytest.fixture
def llm(tmp_path, monkeypatch):
    fake_engine.install(monkeypatch, fake_engine.Machine(step_seconds=0.01))
    monkeypatch.setattr(job, "PROGRESS_SECONDS", 0.005)
    llm = AsyncLLM(EngineConfig(model=write_chain(tmp_path / "chain"), max_num_batched_tokens=16, num_blocks=64))
    yield llm
    llm.close()


def heard(asked):
    lines = bytes(asked.body).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_progress_comes_before_output_and_grows(llm, path):
    app = create_app(llm, ServerConfig())
    text = "".join(chr(97 + place % 26) for place in range(150))
    body = {"model": "default", "max_tokens": 4, "stream": True, "ignore_eos": True, "return_progress": True}
    body |= {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    first = Asked(app, "POST", path, body)
    await first.task
    chunks = heard(first)
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert len(told) > 3 and chunks[0]["choices"] == [] and chunks[0]["id"] == chunks[-1]["id"]
    assert [step["processed"] for step in told] == sorted({step["processed"] for step in told})
    assert all(step["total"] >= 150 and step["cache"] == 0 and step["time_ms"] >= 0 for step in told)
    assert told[-1]["processed"] <= told[-1]["total"]
    plain = Asked(app, "POST", path, body | {"return_progress": False, "prompt_cache_key": "other"})
    await plain.task
    rest = [chunk["choices"] for chunk in chunks if "prompt_progress" not in chunk]
    assert [chunk["choices"] for chunk in heard(plain)] == rest


async def test_a_client_that_leaves_meanwhile_ends_its_request(llm):
    app = create_app(llm, ServerConfig())
    body = {"model": "default", "prompt": "x" * 200, "max_tokens": 50, "stream": True, "return_progress": True}
    asked = Asked(app, "POST", "/v1/completions", body)
    await until(lambda: b"prompt_progress" in asked.body)
    asked.leave()
    await asked.task
    await until(lambda: llm.unfinished == 0 and llm.stats().running == 0)
    assert b'"text"' not in asked.body
