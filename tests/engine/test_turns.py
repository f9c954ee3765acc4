"""Engines that share cores: a step at a time, in turns; a death gives the turn back; no token depends on it."""

import asyncio
import subprocess
import sys
import tempfile

import pytest
from engines import EXECUTORS

from octavo import AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.engine.loop import EngineLoop
from octavo.engine.port import EngineStats
from octavo.engine.turns import Alone, SharedTurns

HOLD = """
import sys, time
from octavo.engine.turns import SharedTurns
turns = SharedTurns(int(sys.argv[1]))
turns.take()
print("taken", flush=True)
sys.stdin.readline()
turns.give()
print("given", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def file():
    with tempfile.TemporaryFile() as file:
        yield file


@pytest.fixture
def holder(file):
    """Another process that has its turn."""
    command = [sys.executable, "-c", HOLD, str(file.fileno())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=[file.fileno()], text=True, **pipes) as child:
        assert child.stdout.readline() == "taken\n"
        yield child
        child.kill()


async def waits(turns):
    """A take in a thread, which does not come back yet."""
    taking = asyncio.create_task(asyncio.to_thread(turns.take))
    done, _ = await asyncio.wait((taking,), timeout=0.1)
    assert not done and not turns.held
    return taking


async def test_a_turn_is_one_process_s(file, holder):
    turns = SharedTurns(file.fileno())
    taking = await waits(turns)
    holder.stdin.write("\n")
    holder.stdin.flush()
    await asyncio.wait_for(taking, 10)
    assert turns.held
    turns.give()
    assert not turns.held


async def test_a_death_gives_the_turn_back(file, holder):
    turns = SharedTurns(file.fileno())
    taking = await waits(turns)
    holder.kill()
    await asyncio.wait_for(taking, 10)
    assert turns.held


class Counted:
    """Notes takes and gives among the steps of a loop."""

    def __init__(self, log):
        self.log, self.held = log, False

    def take(self):
        assert not self.held
        self.log.append("take")
        self.held = True

    def give(self):
        self.log.append("give")
        self.held = False


class Machine:
    """A scheduler and a runner in one: `plans` plans, then nothing."""

    def __init__(self, log, plans):
        self.log, self.plans = log, plans

    @property
    def has_work(self):
        return self.plans > 0

    def schedule(self, now):
        self.plans -= 1
        return type("Plan", (), {"rows": ()})() if self.plans >= 0 else None

    def launch(self, plan):
        self.log.append("launch")

    def finish(self):
        self.log.append("finish")

    def commit(self, plan, result):
        return []


@pytest.mark.parametrize("depth", [1, 2])
def test_a_loop_has_its_turn_while_it_computes(depth):
    log = []
    machine = Machine(log, 4)
    ticks = iter(range(1000))
    loop = EngineLoop(
        machine,
        machine,
        lambda: EngineStats(*(0,) * 10),
        lambda update: None,
        depth=depth,
        turns=Counted(log),
        clock=lambda: next(ticks),
    )
    while machine.plans > 0 or loop._flight:
        loop.turn()
    held = False
    for entry in log:
        held = entry == "take" or (held and entry != "give")
        assert held or entry == "give", log
    assert log.count("finish") == 4 and log.count("take") == log.count("give") == 4


def test_who_is_alone_waits_for_nobody():
    turns = Alone()
    turns.take()
    assert turns.held
    turns.give()
    assert turns.held


async def test_two_engines_in_turns_say_what_each_says_alone(model, file):
    config = EngineConfig(model=model, executor=EXECUTORS[-1], threads=1, num_blocks=256)
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=40, ignore_eos=True)

    async def tokens(llm, text):
        return [token async for delta in llm.stream(text, params) for token in delta.token_ids]

    alone = AsyncLLM(config, process=True)
    expected = [await tokens(alone, text) for text in ("abc", "xyz")]
    alone.close()
    both = [AsyncLLM(config, process=True, turns=file) for _ in range(2)]
    try:
        said = await asyncio.gather(*(tokens(llm, text) for llm in both for text in ("abc", "xyz")))
    finally:
        for llm in both:
            llm.close()
    assert said == expected * 2
