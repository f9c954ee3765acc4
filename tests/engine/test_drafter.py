"""Drafts change how many steps it takes, never the tokens: right, wrong, chains, trees, beside others, preempted."""

import numpy as np
import pytest
from tiny_model import VOCAB
from toy_drafter import ToyDrafter, nothing

from octavo import SamplingParams
from octavo.drafters.port import Proposal

PROMPTS = ["Hello the man", "abc", "a rather longer prompt, of more than one block of tokens"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, logprobs=1),
    SamplingParams(temperature=1.0, seed=11, max_tokens=24, frequency_penalty=1.0, min_tokens=20),
    SamplingParams(temperature=0.7, seed=4, max_tokens=24, repetition_penalty=1.2),
]


def right(truth, depth):
    """A chain of the tokens that will come."""

    def script(request, length):
        return Proposal(truth[request.prompt_ids][length - len(request.prompt_ids) :][:depth])

    return script


def wrong(truth, depth):
    def script(request, length):
        true = truth[request.prompt_ids][length - len(request.prompt_ids) :][:depth]
        return Proposal(tuple((token + 1) % VOCAB for token in true))

    return script


def half_right(truth, depth):
    """Right for a while, then wrong."""

    def script(request, length):
        true = truth[request.prompt_ids][length - len(request.prompt_ids) :][:depth]
        good = length % (depth + 1)
        return Proposal(tuple(token if i < good else (token + 1) % VOCAB for i, token in enumerate(true)))

    return script


def tree(truth, depth):
    """At each depth a wrong sibling stands before the right one, so that accepted tokens have to move."""

    def script(request, length):
        true = truth[request.prompt_ids][length - len(request.prompt_ids) :][: depth // 2]
        tokens, parents, parent = [], [], -1
        for token in true:
            tokens += [(token + 1) % VOCAB, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Proposal(tuple(tokens), tuple(parents))

    return script


@pytest.fixture(scope="module")
def truth(shared):
    outputs = shared.generate(PROMPTS, PARAMS)
    return {output.prompt_token_ids: output.outputs[0].token_ids for output in outputs}


def run(llm):
    outputs = llm.generate(PROMPTS, PARAMS)
    return {output.prompt_token_ids: output.outputs[0].token_ids for output in outputs}, outputs


@pytest.mark.parametrize("kind", [right, wrong, half_right, tree])
@pytest.mark.parametrize("options", [{}, {"plans_outstanding": 2}, {"max_num_batched_tokens": 9, "max_logit_rows": 8}])
def test_drafts_change_no_token(make_llm, truth, executor, kind, options):
    plain = ToyDrafter(VOCAB, nothing)
    base = make_llm(drafter=plain)
    assert run(base)[0] == truth
    drafter = ToyDrafter(VOCAB, kind(truth, 4))
    llm = make_llm(drafter=drafter, **options)
    tokens, outputs = run(llm)
    assert tokens == truth
    assert (
        all(len(entry) >= 1 for entry in outputs[0].outputs[0].logprobs) and len(outputs[0].outputs[0].logprobs) == 24
    )
    stats = llm._engine._loop._scheduler.stats
    assert (stats.drafts_accepted > 0) == (kind is not wrong)
    assert (stats.drafts_rejected > 0) == (kind is not right)
    assert (stats.copies > 0) == (kind is tree)
    assert (stats.steps < base.stats().steps) or kind is wrong or options
    assert sorted(drafter.forgotten) == sorted(plain.forgotten)
    compare_caches(executor, drafter.seen, plain.seen)


def compare_caches(executor, seen, plain):
    """What the drafter's own layer computed for each accepted token is what it computes without drafts."""
    assert seen.keys() == plain.keys()
    for place, logits in seen.items():
        if executor == "native":
            assert np.array_equal(logits, plain[place])
        else:
            np.testing.assert_allclose(logits, plain[place], atol=1e-4)
    assert np.std(np.stack(list(plain.values()))) > 0.1


@pytest.mark.parametrize("kind", [half_right, tree])
def test_drafts_with_preemption(make_llm, truth, kind):
    llm = make_llm(drafter=ToyDrafter(VOCAB, kind(truth, 4)), num_blocks=7, enable_prefix_caching=False)
    assert run(llm)[0] == truth
    stats = llm._engine._loop._scheduler.stats
    assert stats.preemptions >= 1 and stats.drafts_accepted > 0


def test_a_stop_inside_accepted_drafts_ends_everything_there(make_llm, shared):
    """T8: text, ids and log-probabilities end with the stop string, as without drafts."""
    letters = tuple(range(64, 90))
    common = {"temperature": 0, "max_tokens": 20, "logprobs": 2, "allowed_token_ids": letters}
    free = shared.generate("abc", SamplingParams(**common))[0]
    params = SamplingParams(**common, stop=free.outputs[0].text[6:8])
    whole = shared.generate("abc", params)[0].outputs[0]
    truth = {free.prompt_token_ids: free.outputs[0].token_ids}
    llm = make_llm(drafter=ToyDrafter(VOCAB, right(truth, 6)))
    cut = llm.generate("abc", params)[0].outputs[0]
    assert (cut.text, cut.token_ids, cut.stop_reason) == (whole.text, whole.token_ids, whole.stop_reason)
    assert len(cut.logprobs) == len(cut.token_ids) < 20
