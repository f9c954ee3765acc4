"""AsyncLLM: what streams deliver, and that whatever ends a stream gives everything back."""

import asyncio
import gc
import threading
from dataclasses import replace

import pytest
from engines import Brake, assert_all_free

from octavo import AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.errors import EngineError, RequestError

LETTERS = tuple(range(64, 90))
PARAMS = SamplingParams(temperature=0, max_tokens=10, allowed_token_ids=LETTERS)


@pytest.fixture
def llm(model, executor):
    config = EngineConfig(
        model=model, executor=executor, threads=1, num_blocks=32, max_model_len=256, max_num_batched_tokens=4
    )
    llm = AsyncLLM(config)
    yield llm
    llm.close()


async def collect(stream):
    return [delta async for delta in stream]


async def idle(llm):
    """Waits until nothing runs; the test's own limit ends it when that never comes."""
    while (stats := llm.stats()).running or stats.waiting:
        await asyncio.sleep(0.002)
    assert_all_free(stats)


async def test_deltas_joined_are_the_whole(llm, shared):
    deltas = await collect(llm.stream("abc", SamplingParams(temperature=0, max_tokens=10, logprobs=1)))
    whole = shared.generate("abc", SamplingParams(temperature=0, max_tokens=10, logprobs=1))[0].outputs[0]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids
    assert sum(len(delta.logprobs) for delta in deltas) == len(whole.token_ids)
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"] == [deltas[-1].finish_reason]
    assert {delta.prompt_tokens for delta in deltas} == {len(shared.encode("abc"))}


async def test_no_delta_is_empty(llm):
    deltas = await collect(llm.stream("abc", SamplingParams(temperature=0, max_tokens=10, stop=("zzzz",))))
    assert all(delta.text or delta.finish_reason for delta in deltas)


async def test_choices_end_once_each(llm, shared):
    params = SamplingParams(n=2, temperature=1.0, seed=9, max_tokens=6, prompt_logprobs=0)
    deltas = await collect(llm.stream("abc", params))
    whole = shared.generate("abc", params)[0]
    for index in (0, 1):
        own = [delta for delta in deltas if delta.index == index]
        assert [d.finish_reason for d in own if d.finish_reason] == ["length"]
        assert sum((d.token_ids for d in own), ()) == whole.outputs[index].token_ids
    assert len([d for d in deltas if d.prompt_logprobs]) == 1


async def test_stop_string_streams_nothing_beyond(llm, shared):
    """T6, T8: text, ids and log-probabilities end with the stop string, none of which is shown."""
    common = {"temperature": 0, "max_tokens": 20, "logprobs": 0, "allowed_token_ids": LETTERS}
    free = shared.generate("abc", SamplingParams(**common))[0].outputs[0].text
    params = SamplingParams(**common, stop=free[5:9])
    deltas = await collect(llm.stream("abc", params))
    text = "".join(delta.text for delta in deltas)
    assert text == free[: free.index(free[5:9])]
    ids = sum((delta.token_ids for delta in deltas), ())
    assert shared.decode(ids).endswith(free[5:9])
    assert len(ids) == sum(len(delta.logprobs) for delta in deltas)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", free[5:9])
    await idle(llm)


async def test_a_slow_reader_gets_the_same_text(llm, shared):
    brake = Brake(llm, 2)
    stream = llm.stream("abc", PARAMS)
    first = await anext(stream)
    while not brake.held:
        await asyncio.sleep(0.001)
    brake.release()
    await idle(llm)  # the engine does not wait for the reader
    while llm._post._sacks:
        await asyncio.sleep(0)
    rest = await collect(stream)
    assert first.text + "".join(delta.text for delta in rest) == shared.generate("abc", PARAMS)[0].outputs[0].text
    assert len(rest) == 1


@pytest.mark.parametrize("length", [10, 33])
async def test_abort_at_every_step(llm, shared, length):
    """T39: a prompt in several chunks, then decoding; ended after each number of steps; the neighbour is unchanged."""
    params = replace(PARAMS, speculate=False)  # a step a token
    prompt = [64 + i % 26 for i in range(length)]
    other = [90 - i % 26 for i in range(length)]
    alone = sum((delta.token_ids for delta in await collect(llm.stream(other, params))), ())
    ends = []
    for steps in [*range(-(-length // 4) + 12), 1000]:
        brake = Brake(llm, steps)
        doomed = asyncio.create_task(collect(llm.stream(prompt, params, request_id="doomed")))
        neighbour = asyncio.create_task(collect(llm.stream(other, params)))
        while not brake.held and not doomed.done():
            await asyncio.sleep(0.001)
        llm.abort("doomed")
        brake.release()
        ends.append((await doomed)[-1].finish_reason)
        assert sum((delta.token_ids for delta in await neighbour), ()) == alone
        await idle(llm)
    assert ends.count("abort") > 8 and ends[-1] == "length"


async def test_closing_the_stream_aborts(llm):
    brake = Brake(llm, 5)
    stream = llm.stream("abc", SamplingParams(n=2, max_tokens=200, allowed_token_ids=LETTERS))
    for _ in range(2):
        await anext(stream)
    await stream.aclose()
    brake.release()
    await idle(llm)
    assert llm.stats().output_tokens < 20
    assert not llm._open


async def test_cancelling_the_reader_aborts(llm):
    brake = Brake(llm, 4)
    task = asyncio.create_task(collect(llm.stream("abc", SamplingParams(max_tokens=200, ignore_eos=True))))
    while not llm.stats().running:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    brake.release()
    await idle(llm)
    assert llm.stats().output_tokens < 20


async def test_nothing_is_kept_of_ended_requests(llm):
    await asyncio.gather(*(collect(llm.stream("abc", PARAMS)) for _ in range(20)))
    await idle(llm)
    gc.collect()
    runner = llm._engine._loop._runner
    assert runner.num_requests == 0 and not runner._sampler._compiled
    assert not llm._engine._sinks._sinks and not llm._engine._loop._open


async def test_refusals_come_before_the_first_delta(llm):
    with pytest.raises(RequestError):
        await anext(llm.stream("", PARAMS))
    with pytest.raises(RequestError):
        await anext(llm.stream([1] * 250, SamplingParams(max_tokens=100)))
    await idle(llm)


@pytest.mark.parametrize(("prompt", "words"), [("abc", ()), ((1, 66), ("qq",))])
async def test_text_is_encoded_beside_the_event_loop(llm, monkeypatch, prompt, words):
    """Megabytes take seconds, and only one text has its turn."""
    here, threads, encode = threading.current_thread(), [], llm.tokenizer.encode

    def noted(*args, **options):
        threads.append(threading.current_thread())
        return encode(*args, **options)

    monkeypatch.setattr(llm.tokenizer, "encode", noted)
    await collect(llm.stream(prompt, SamplingParams(max_tokens=2, bad_words=words)))
    assert threads and here not in threads


async def test_close_ends_open_streams(llm):
    brake = Brake(llm, 0)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    tasks = [asyncio.create_task(collect(llm.stream("abc", params))) for _ in range(3)]
    while not brake.held or len(llm._engine._sinks._sinks) < 3:
        await asyncio.sleep(0.001)
    brake.allow(8)
    while llm.stats().running < 3:
        await asyncio.sleep(0.001)
    closing = asyncio.create_task(asyncio.to_thread(llm.close))
    while llm._engine._loop._inbox.empty() and not closing.done():
        await asyncio.sleep(0.001)
    brake.release()
    await closing
    for deltas in await asyncio.gather(*tasks):
        assert deltas[-1].finish_reason == "abort"
    with pytest.raises(EngineError, match="closed"):
        await anext(llm.stream("abc", PARAMS))
    llm.close()


async def test_streams_in_a_second_event_loop(llm, shared):
    """The engine outlives the loop that started it."""
    text = await asyncio.to_thread(lambda: asyncio.run(collect(llm.stream("abc", PARAMS))))
    assert "".join(d.text for d in text) == shared.generate("abc", PARAMS)[0].outputs[0].text
