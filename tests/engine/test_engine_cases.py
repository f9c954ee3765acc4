"""Reported faults of other engines, met where a Python caller meets them. The letters are those of tests/CASES.md.

Two models: `chain`, whose greedy answer is known, and the tiny random one. The executor is the native one.
"""

import asyncio
import math

import pytest
from chain_model import END, SECOND_END, byte_ids, write_pieces
from engines import ask, ids
from toy_drafter import ToyDrafter

from octavo import AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.drafters.port import Proposal
from octavo.errors import RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12)
LETTERS = tuple(range(64, 90))


def stream(path, prompt, params, **options):
    """Every delta of one stream."""

    async def read():
        llm = AsyncLLM(EngineConfig(model=path, threads=1, num_blocks=64, **options))
        try:
            return [delta async for delta in llm.stream(prompt, params)]
        finally:
            await asyncio.to_thread(llm.close)

    return asyncio.run(read())


# ---- text
def test_t1_a_prompt_that_ends_inside_a_character(chain, chain_path):
    prompt = [*byte_ids("Hello world "), *byte_ids("🌶")[:3]]
    assert ask(chain, prompt).text == "🌶"
    deltas = stream(chain_path, prompt, GREEDY)
    assert "".join(delta.text for delta in deltas) == "🌶"


def test_t2_a_character_of_two_tokens(chain, chain_path):
    assert ask(chain, "d").text == "ďábel"
    deltas = stream(chain_path, "d", GREEDY)
    assert "".join(delta.text for delta in deltas) == "ďábel"
    assert not any("\ufffd" in delta.text for delta in deltas)


def test_t4_leading_spaces(chain, tmp_path, open_llm):
    assert ask(chain, "=").text == " hi"
    path = write_pieces(tmp_path)
    answer = ask(open_llm(path), [1])
    assert (answer.text, answer.token_ids) == (" leading x", (3, 4, 5, 2))
    deltas = stream(path, [1], GREEDY)
    assert "".join(delta.text for delta in deltas) == " leading x"


# ---- stops
def test_t6_no_part_of_a_stop_string_is_streamed(chain, chain_path):
    params = SamplingParams(temperature=0, max_tokens=12, stop="DEFGHIJ")
    deltas = stream(chain_path, "My alphabet: ABC", params)
    assert all(delta.text == "" for delta in deltas)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "DEFGHIJ")
    assert ask(chain, "My alphabet: ABC", stop=("DEFGHIJ",)).text == ""
    assert ask(chain, "My alphabet: ABC", stop=("GHX", "FGHY"), max_tokens=8).text == "DEFGHIJK"


@pytest.mark.parametrize("stop", ["ZZZZ", "JKL", "K?"])
def test_t7_a_stop_string_that_never_comes_loses_nothing(chain, chain_path, stop):
    free = ask(chain, "ABC", max_tokens=8)
    held = ask(chain, "ABC", max_tokens=8, stop=(stop,))
    assert (held.text, held.token_ids, held.finish_reason) == (free.text, free.token_ids, "length") and len(
        free.text
    ) == 8
    deltas = stream(chain_path, "ABC", SamplingParams(temperature=0, max_tokens=8, stop=stop))
    assert "".join(delta.text for delta in deltas) == free.text
    assert all(delta.text or delta.finish_reason for delta in deltas)


def test_t7_a_tail_that_is_held_is_shown_at_the_end_of_text(chain):
    answer = ask(chain, "V", stop=("YZ!",))
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("WXYZ", "stop", None)


def test_t10_every_end_of_text_is_banned_before_min_tokens(chain):
    assert chain.tokenizer.eos_ids == (END, SECOND_END)
    first = ask(chain, "?")
    assert (first.token_ids, first.text, first.finish_reason) == ((SECOND_END,), "", "stop")
    late = ask(chain, "?", min_tokens=5, logit_bias={END: 50.0, SECOND_END: 100.0})
    assert len(late.token_ids) == 6 and late.token_ids[-1] == SECOND_END
    assert not {END, SECOND_END} & set(late.token_ids[:5])
    stopping = ask(chain, "ABC", min_tokens=5, stop_token_ids=byte_ids("D"))
    assert len(stopping.token_ids) >= 5 and byte_ids("D")[0] not in stopping.token_ids[:5]


def test_stop_strings_need_text(chain):
    """They would be off in silence."""
    with pytest.raises(RequestError, match="stop strings need text"):
        ask(chain, "ABC", stop=("D",), detokenize=False)


# ---- sampling
def test_t14_top_k_on_and_off_in_one_batch(tiny):
    rows = [
        SamplingParams(temperature=0, max_tokens=12),
        SamplingParams(temperature=1, top_k=64, top_p=0.95, seed=1, max_tokens=12),
        SamplingParams(temperature=1, seed=2, max_tokens=12),
        SamplingParams(temperature=1, top_k=1, seed=3, max_tokens=12),
    ]
    alone = [ids(tiny.generate("abc", row, use_tqdm=False))[0] for row in rows]
    assert ids(tiny.generate(["abc"] * 4, rows, use_tqdm=False)) == alone
    assert len(set(alone)) == 3 and alone[0] == alone[3]


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-12])
def test_t15_tiny_temperatures_are_greedy(tiny, temperature):
    greedy = ask(tiny, "San Francisco is a", logprobs=3)
    cold = ask(tiny, "San Francisco is a", logprobs=3, temperature=temperature, seed=1)
    assert cold.token_ids == greedy.token_ids
    assert all(math.isfinite(entry.logprob) for place in cold.logprobs for entry in place.values())


def test_t16_a_seed_holds_whatever_the_mates(tiny):
    seeded = SamplingParams(temperature=1, seed=42, max_tokens=16)
    free = SamplingParams(temperature=1, max_tokens=16)
    alone = ids(tiny.generate("abc", seeded, use_tqdm=False))[0]
    for _ in range(4):
        assert ids(tiny.generate(["abc", "abc"], [seeded, free], use_tqdm=False))[0] == alone
    children = tiny.generate("abc", SamplingParams(n=3, temperature=1, seed=42, max_tokens=16), use_tqdm=False)
    assert len(set(ids(children))) == 3


def test_t19_more_alternatives_than_tokens(tmp_path, open_llm):
    answer = ask(open_llm(write_pieces(tmp_path)), [1], logprobs=20)
    assert all(len(place) == 12 for place in answer.logprobs)
    with pytest.raises(RequestError, match="logprobs must be an integer in"):
        SamplingParams(logprobs=100)


# ---- prefix cache
@pytest.mark.parametrize("length", [16, 32, 48])
def test_t23_a_prompt_of_whole_blocks_that_is_all_cached(open_llm, length):
    llm = open_llm()
    prompt = [i % 250 for i in range(length)]
    cold, warm = (llm.generate({"prompt_token_ids": prompt}, GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, length - 1)  # the last token's row is needed
    assert ids([warm]) == ids([cold])


def test_equal_prompts_in_one_step(open_llm, tiny):
    """The later of two equal blocks must neither replace the earlier nor be read before it is computed."""
    prompt = {"prompt_token_ids": [i % 250 for i in range(70)]}
    alone = ids(tiny.generate(prompt, GREEDY, use_tqdm=False))
    for budget in (512, 20):
        llm = open_llm(max_num_batched_tokens=budget)
        for _ in range(2):
            assert ids(llm.generate([prompt] * 4, GREEDY, use_tqdm=False)) == alone * 4
        assert llm.stats().cached_tokens > 0


def test_an_aborted_request_leaves_its_prefix(model):
    prompt = [i % 250 for i in range(64)]

    async def run():
        llm = AsyncLLM(EngineConfig(model=model, threads=1, num_blocks=64))
        try:
            first = llm.stream(prompt, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
            await anext(first)
            await first.aclose()
            while llm.stats().running:
                await asyncio.sleep(0.001)
            return [delta async for delta in llm.stream(prompt, GREEDY)][-1].cached_tokens
        finally:
            await asyncio.to_thread(llm.close)

    assert asyncio.run(run()) >= 48


# ---- preemption
def test_t28_preempted_requests_with_a_shared_prefix(open_llm, tiny):
    """The pool is too small for both; the one preempted finds its own freed blocks again."""
    shared = [i % 250 for i in range(32)]
    prompts = [{"prompt_token_ids": [*shared, 100 + i]} for i in range(2)]
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=80, ignore_eos=True)
    roomy = tiny.generate(prompts, params, use_tqdm=False)
    llm = open_llm(num_blocks=9)  # 33 + 80 tokens are 8 blocks each, the first two shared: 14 for both
    assert ids(llm.generate(prompts, params, use_tqdm=False)) == ids(roomy)
    assert llm.stats().preemptions >= 1 and llm.stats().cached_tokens > 0


@pytest.mark.parametrize("caching", [True, False])
def test_t29_a_preempted_stream_repeats_and_misses_nothing(model, tiny, caching):
    """A prompt of three tokens, preempted after many outputs."""
    prompts = [[10 + i, 20, 30] for i in range(3)]
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=60, ignore_eos=True, logprobs=0)
    whole = tiny.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)

    async def run():
        config = EngineConfig(model=model, threads=1, num_blocks=8, enable_prefix_caching=caching)
        llm = AsyncLLM(config)
        try:

            async def read(prompt):
                return [delta async for delta in llm.stream(prompt, params)]

            return await asyncio.gather(*map(read, prompts)), llm.stats().preemptions
        finally:
            await asyncio.to_thread(llm.close)

    streams, preemptions = asyncio.run(run())
    assert preemptions >= 1
    for deltas, output in zip(streams, whole, strict=True):
        choice = output.outputs[0]
        assert sum((delta.token_ids for delta in deltas), ()) == choice.token_ids
        assert [place for delta in deltas for place in delta.logprobs] == choice.logprobs
        assert "".join(delta.text for delta in deltas) == choice.text


def test_several_choices_with_preemption(open_llm, tiny):
    params = SamplingParams(n=4, temperature=1, seed=11, max_tokens=30, ignore_eos=True)
    prompt = {"prompt_token_ids": list(range(20))}
    llm = open_llm(num_blocks=8)
    assert ids(llm.generate(prompt, params, use_tqdm=False)) == ids(tiny.generate(prompt, params, use_tqdm=False))
    assert llm.stats().preemptions >= 1


# ---- drafts
def test_a_drafted_end_that_is_rejected_ends_nothing(tiny, open_llm):
    truth = ids(tiny.generate("abc", GREEDY, use_tqdm=False))[0]
    eos = tiny.tokenizer.eos_ids[0]
    llm = open_llm(drafter=ToyDrafter(tiny.info.vocab_size, lambda request, length: Proposal((eos, eos))))
    answer = ask(llm, "abc")
    assert (answer.token_ids, answer.finish_reason) == (truth, "length") and eos not in truth
    assert llm._engine._loop._scheduler.stats.drafts_rejected > 0
