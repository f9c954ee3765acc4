"""Reported faults around drafts: penalties, special tokens, ends, grammars. What is proposed changes no bit."""

import json

import pytest
from engines import settle
from toy_drafter import ToyDrafter

from octavo import SamplingParams
from octavo.drafters.port import Proposal
from octavo.request import Structure

SCHEMA = Structure("json_schema", json.dumps({"type": "object", "properties": {"a": {"enum": ["x"]}}}))


def told(llm, prompts, params):
    outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    return [(one.token_ids, one.text, one.logprobs, one.finish_reason) for one in outputs]


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2.0}, {"frequency_penalty": -2.0}, {"presence_penalty": 1.5}]
)
def test_t36_penalties_count_the_drafts_before_a_row(open_llm, kind, penalty):
    common = {**penalty, "allowed_token_ids": (20, 21, 22)}
    prompts = ["hello " * 12, "serving" * 8, "hello " * 12]
    params = [
        SamplingParams(temperature=temperature, seed=3, max_tokens=32, ignore_eos=True, logprobs=2, **common)
        for temperature in (0.0, 0.0, 0.9)
    ]
    plain = told(open_llm(), prompts, params)
    llm = open_llm(speculate=kind)
    assert told(llm, prompts, params) == plain
    settle(llm)
    assert llm.stats().drafts > 0


def forced(tokens, parents=()):
    return lambda request, length: Proposal(tuple(tokens), tuple(parents))


@pytest.mark.parametrize("kind", ["end", "special", "fence", "tree"])
def test_whatever_is_proposed_changes_nothing(open_llm, tiny, kind):
    """Ends, special tokens, a markdown fence before JSON, a tree of all of them; beside mates with and without a
    form, and with log-probabilities."""
    tokenizer = tiny.tokenizer
    special = [tokenizer.eos_ids[0], *sorted(tokenizer.pieces.hidden)[:2]]
    fence = tokenizer.encode("```json\n{")
    proposal = {
        "end": forced([special[0]] * 3),
        "special": forced([*special, *special]),
        "fence": forced(fence[:5]),
        "tree": forced([*special[:2], *fence[:3]], [-1, -1, 0, -1, 3]),
    }[kind]
    prompts = ["abc", "Hello the man", "JSON please", "abc abc"]
    params = [
        SamplingParams(temperature=0, max_tokens=16, logprobs=1),
        SamplingParams(temperature=0.8, seed=5, max_tokens=16, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=24, structure=SCHEMA, logprobs=1),
        SamplingParams(temperature=1.0, seed=9, max_tokens=24, structure=SCHEMA),
    ]
    plain = told(tiny, prompts, params)
    llm = open_llm(drafter=ToyDrafter(tiny.info.vocab_size, proposal))
    assert told(llm, prompts, params) == plain
    settle(llm)
    assert llm.stats().drafts > 0
