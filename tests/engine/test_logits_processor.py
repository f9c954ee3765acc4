"""A caller's own function over the logits: what it may do, that it stays its own row's affair, what its errors end."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from test_drafter import half_right
from tiny_model import VOCAB
from toy_drafter import ToyDrafter

from octavo import AsyncLLM
from octavo.config import EngineConfig
from octavo.errors import RequestError, UnsupportedError
from octavo.request import SamplingParams, Structure

LETTERS = list(range(64, 90))
FREE = SamplingParams(temperature=0.9, seed=5, max_tokens=16, logprobs=2)


def letters_alone(token_ids, logits):
    kept = logits[LETTERS].copy()
    logits[:] = -np.inf
    logits[LETTERS] = kept


def never_twice(token_ids, logits):
    logits[token_ids[-1]] = -np.inf


def nothing(token_ids, logits):
    pass


def answers(llm, *params):
    outputs = llm.generate(["the"] * len(params), list(params), use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def test_it_decides_what_may_come(shared):
    (bound,) = answers(shared, replace(FREE, logits_processor=letters_alone))
    assert set(bound.token_ids) <= set(LETTERS)
    (wanted,) = answers(shared, replace(FREE, allowed_token_ids=tuple(LETTERS)))
    assert (bound.token_ids, bound.logprobs) == (wanted.token_ids, wanted.logprobs)
    (free, same) = answers(shared, FREE, replace(FREE, logits_processor=nothing))
    assert (free.token_ids, free.logprobs) == (same.token_ids, same.logprobs)


def test_it_sees_the_prompt_and_the_output(shared):
    seen = []
    (output,) = answers(shared, replace(FREE, logits_processor=lambda ids, logits: seen.append(tuple(ids))))
    prompt = tuple(shared.encode("the"))
    assert seen == [prompt + output.token_ids[:length] for length in range(16)]
    (other,) = answers(shared, replace(FREE, logits_processor=never_twice))
    assert all(a != b for a, b in zip(other.token_ids, other.token_ids[1:], strict=False))


def test_batch_mates_change_nothing(shared, executor):
    mixed = [FREE, replace(FREE, logits_processor=letters_alone), replace(FREE, logits_processor=never_twice)]
    together = answers(shared, *mixed)
    for params, mate in zip(mixed, together, strict=True):
        (alone,) = answers(shared, params)
        assert alone.token_ids == mate.token_ids
        assert alone.logprobs == mate.logprobs or executor == "reference"


def test_drafts_change_no_token(shared, make_llm):
    params = replace(FREE, logits_processor=never_twice, max_tokens=24)
    (want,) = shared.generate("the", params, use_tqdm=False)
    drafter = ToyDrafter(VOCAB, half_right({want.prompt_token_ids: want.outputs[0].token_ids}, 4))
    llm = make_llm(drafter=drafter)
    assert answers(llm, params)[0].token_ids == want.outputs[0].token_ids
    assert llm.stats().drafts_accepted > 0


def test_one_for_the_whole_engine(make_llm, shared):
    llm = make_llm(logits_processor=letters_alone)
    own = replace(FREE, logits_processor=nothing)
    assert (
        answers(llm, FREE, own)[0].token_ids
        == answers(shared, replace(FREE, logits_processor=letters_alone))[0].token_ids
    )
    assert answers(llm, own)[0].token_ids == answers(shared, FREE)[0].token_ids


def test_a_form_stands_above_it(shared):
    choice = Structure("choice", '["red", "green"]')
    (output,) = answers(shared, replace(FREE, structure=choice, logits_processor=nothing))
    assert output.text in ("red", "green")


def raising(token_ids, logits):
    raise ValueError("no\nway")


def returning(token_ids, logits):
    return logits


def poisoning(token_ids, logits):
    logits[3] = np.nan


@pytest.mark.parametrize(
    ("function", "says"),
    [(raising, "raising: ValueError: no"), (returning, "returning: changes"), (poisoning, "poisoning: left NaN")],
)
def test_an_error_ends_its_own_request_alone(shared, function, says):
    bad, good = answers(shared, replace(FREE, logits_processor=function), FREE)
    assert bad.finish_reason == "error" and says in bad.stop_reason and "\n" not in bad.stop_reason
    assert good.token_ids == answers(shared, FREE)[0].token_ids and good.finish_reason == "length"


def test_what_is_no_function_is_refused():
    with pytest.raises(RequestError) as refused:
        SamplingParams(logits_processor=7)
    assert refused.value.param == "logits_processor"


def test_an_engine_in_another_process_refuses_it_by_name(model):
    async def ask():
        config = EngineConfig(model=model, threads=1, num_blocks=16)
        llm = await AsyncLLM.start(config, process=True)
        try:
            async for _ in llm.stream("the", replace(FREE, logits_processor=nothing)):
                pass
        finally:
            llm.close()

    with pytest.raises(UnsupportedError) as refused:
        asyncio.run(ask())
    assert refused.value.param == "logits_processor"
