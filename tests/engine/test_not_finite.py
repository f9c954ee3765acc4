"""Logits that are no numbers: their request ends alone, and nothing that it computed is found again."""

import asyncio

import fake_engine
import pytest
from chain_model import write_chain

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.request import SamplingParams

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)
BAD, GOOD = [66, *range(70, 170)], [67, *range(70, 170)]


@pytest.fixture
def machine():
    return fake_engine.Machine(not_finite=BAD[0])


@pytest.fixture
def llm(tmp_path, monkeypatch, machine):
    fake_engine.install(monkeypatch, machine)
    llm = AsyncLLM(EngineConfig(model=write_chain(tmp_path / "chain"), max_num_batched_tokens=32, num_blocks=64))
    yield llm
    llm.close()


async def last(llm, prompt):
    return [delta async for delta in llm.stream(prompt, PARAMS)][-1]


async def test_one_request_ends_and_its_blocks_are_forgotten(llm, machine):
    ends = await asyncio.gather(*(last(llm, prompt) for prompt in (GOOD, BAD, GOOD[::-1], BAD)))
    assert [end.finish_reason for end in ends] == ["length", "error", "length", "error"]
    assert "not finite" in ends[1].stop_reason and llm.error is None
    machine.not_finite = None
    assert (await last(llm, GOOD)).cached_tokens == 96
    again = await last(llm, BAD)
    assert (again.finish_reason, again.cached_tokens) == ("length", 0)
    assert (await last(llm, BAD)).cached_tokens == 96
    while (stats := llm.stats()).running:
        await asyncio.sleep(0.001)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
