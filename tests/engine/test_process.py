"""The engine as a child process: the same tokens, and no death that leaves a stream without its end."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest
from engines import EXECUTORS, assert_all_free

from octavo import AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.engine.executor import ProcessEngine
from octavo.errors import EngineError, MissingFileError, RequestError

LONG = SamplingParams(max_tokens=6000, ignore_eos=True)  # longer than any test takes


@pytest.fixture
def config(model):
    """One executor is enough here: the one that starts faster."""
    return EngineConfig(model=model, executor=EXECUTORS[-1], threads=1, num_blocks=2048)


@pytest.fixture
def executor():
    """For make_llm."""
    return EXECUTORS[-1]


@pytest.fixture
def llm(config):
    llm = AsyncLLM(config, process=True)
    yield llm
    llm.close()


async def collect(stream):
    return [delta async for delta in stream]


async def started(llm, count):
    while llm.stats().running < count:
        await asyncio.sleep(0.002)


async def test_same_tokens_as_in_a_thread(llm, make_llm):
    here = make_llm()
    params = SamplingParams(temperature=0.9, seed=2**64 - 1, n=2, max_tokens=8, logprobs=1, logit_bias={70: -1.0})
    deltas = await collect(llm.stream("abc", params))
    whole = here.generate("abc", params)[0]
    for choice in whole.outputs:
        own = [delta for delta in deltas if delta.index == choice.index]
        assert sum((delta.token_ids for delta in own), ()) == choice.token_ids
        there = [entry for delta in own for entry in delta.logprobs]
        for left, right in zip(there, choice.logprobs, strict=True):
            assert list(left) == list(right) and left[next(iter(left))].rank == right[next(iter(right))].rank
    assert llm.info.numerics == here.info.numerics
    assert_all_free(llm.stats())


async def test_refusal_and_abort_cross_the_wire(llm):
    with pytest.raises(RequestError):
        await anext(llm.stream("abc", SamplingParams(stop_token_ids=(999,))))
    task = asyncio.create_task(collect(llm.stream("abc", LONG, request_id="one")))
    await started(llm, 1)
    llm.abort("one")
    assert (await task)[-1].finish_reason == "abort"
    while llm.stats().running:
        await asyncio.sleep(0.002)
    assert_all_free(llm.stats())


async def test_kill_ends_every_stream_with_an_error(llm):
    """The child is gone without a word; every stream ends, later ones are refused, the cause stays."""
    tasks = [asyncio.create_task(collect(llm.stream("abc", LONG))) for _ in range(3)]
    await started(llm, 3)
    os.kill(llm._engine.pid, signal.SIGKILL)
    for deltas in await asyncio.wait_for(asyncio.gather(*tasks), 60):
        assert deltas[-1].finish_reason == "error" and "died" in deltas[-1].stop_reason
    assert llm.error.code == "engine_dead" and "signal 9" in llm.error.message
    with pytest.raises(EngineError, match="died"):
        await anext(llm.stream("abc", LONG))
    assert llm._engine.exit_code == -9


async def test_a_frame_that_is_no_message_ends_the_child(llm):
    llm._engine._channel._socket.sendall((5).to_bytes(4, "little") + b"bogus")
    assert llm._engine._child.wait(10) == 70
    while llm.error is None:
        await asyncio.sleep(0.002)
    assert "exit code 70" in llm.error.message


async def test_close_ends_streams_and_the_child(llm):
    task = asyncio.create_task(collect(llm.stream("abc", LONG)))
    await started(llm, 1)
    await asyncio.to_thread(llm.close)
    assert (await task)[-1].finish_reason == "abort"
    assert llm._engine.exit_code == 0
    llm.close()


def test_a_child_that_cannot_load_says_why(config, tmp_path):
    with pytest.raises(MissingFileError):
        ProcessEngine(replace(config, model=str(tmp_path / "nowhere")))


def test_the_child_ends_with_its_face(config):
    """A face that is killed leaves no engine behind."""
    script = f"""
        import os, signal
        from octavo.config import EngineConfig
        from octavo.engine.executor import ProcessEngine
        config = EngineConfig(model={config.model!r}, executor={config.executor!r}, num_blocks=8, threads=1)
        engine = ProcessEngine(config)
        print(engine.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    face = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    pid = int(face.stdout)
    deadline = time.monotonic() + 10
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(pid)


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_child_that_hangs_stops_nobody_here(llm):
    """Its socket is full, and still no call of the face waits."""
    os.kill(llm._engine.pid, signal.SIGSTOP)
    try:
        streams = [asyncio.create_task(collect(llm.stream([70] * 50, LONG))) for _ in range(1000)]
        while len(llm._open) < len(streams):
            await asyncio.sleep(0.002)
        assert not any(task.done() for task in streams)
        assert llm._engine._outbox.qsize() > 0
    finally:
        os.kill(llm._engine.pid, signal.SIGKILL)
    for deltas in await asyncio.wait_for(asyncio.gather(*streams), 60):
        assert deltas[-1].finish_reason == "error"


def test_a_step_that_never_ends_ends_the_process():
    script = """
        import threading, time
        from octavo.engine import child
        class Hung:
            busy_since = time.monotonic()
        threading.Thread(target=child.watch, args=(Hung, 0.05), daemon=True).start()
        time.sleep(30)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 70 and "engine_hung" in done.stderr
    assert "Thread" in done.stderr


def test_a_loop_that_waits_is_not_hung():
    script = """
        import threading, time
        from octavo.engine import child
        class Idle:
            busy_since = None
        threading.Thread(target=child.watch, args=(Idle, 0.01), daemon=True).start()
        time.sleep(0.2)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)]).returncode == 0
