"""Who is sampled how: a step without drafts at once, with a drafter as without; one with drafts row by row."""

import pytest
from tiny_model import VOCAB
from toy_drafter import ToyDrafter

from octavo import SamplingParams
from octavo.drafters.port import Proposal

PROMPTS = ["Hello the man", "abc", "a rather longer prompt, of more than one block of tokens"]
PENALTIES = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"presence_penalty": 1.0, "top_p": 0.9},
]
PARAMS = [
    SamplingParams(temperature=1.0, seed=place, max_tokens=30, ignore_eos=True, **penalties)
    for place, penalties in enumerate(PENALTIES)
]


def counted(llm, monkeypatch):
    """Steps that are sampled row by row, and those at once."""
    sampler, counts = llm._engine._loop._runner._sampler, {"rows": 0, "once": 0}
    sample, cohort = sampler.sample, sampler.cohort

    class Counted:
        def __init__(self, inner):
            self.inner = inner

        def sample(self, logits, header):
            counts["once"] += 1
            return self.inner.sample(logits, header)

    def by_rows(logits, rows):
        counts["rows"] += 1
        return sample(logits, rows)

    monkeypatch.setattr(sampler, "sample", by_rows)
    monkeypatch.setattr(sampler, "cohort", lambda requests: (found := cohort(requests)) and Counted(found))
    return counts


class Now(ToyDrafter):
    """Right and wrong drafts, some steps long; told in some ways and shown in others."""

    def __init__(self, truth):
        self.asked = 0
        super().__init__(VOCAB, self.by_turns)
        self.truth = truth

    def by_turns(self, request, length):
        true = self.truth[request.prompt_ids][length - len(request.prompt_ids) :][:3]
        turn = length % 9
        wrong = tuple((token + 1) % VOCAB for token in true)
        return Proposal(true if turn in (2, 6) else wrong if turn == 4 else ())

    def follow(self, session, requests, tokens):
        self.asked += 1
        if self.asked % 4 == 0:
            return None
        proposals = []
        for request, news in zip(requests, tokens, strict=True):
            place = len(request.output_ids)
            assert self.truth[request.prompt_ids][place : place + len(news)] == tuple(news)
            proposals.append(self.by_turns(request, request.num_tokens + len(news)))
        return proposals if self.asked % 6 else ()

    def extend(self, session, rows):
        return


def ran(llm):
    return {one.prompt_token_ids: one.outputs[0].token_ids for one in llm.generate(PROMPTS, PARAMS, use_tqdm=False)}


def test_with_a_drafter_that_proposes_nothing_steps_are_sampled_at_once(make_llm, monkeypatch):
    plain = make_llm(speculate="off")
    without = counted(plain, monkeypatch)
    truth = ran(plain)
    llm = make_llm(drafter=ToyDrafter(VOCAB, lambda request, length: Proposal()))
    counts = counted(llm, monkeypatch)
    assert ran(llm) == truth
    assert counts == without and counts["once"] >= 28 and counts["rows"] <= 3


@pytest.mark.parametrize("options", [{}, {"plans_outstanding": 2}, {"num_blocks": 8, "enable_prefix_caching": False}])
def test_tokens_are_the_same_whichever_way_they_are_sampled(make_llm, monkeypatch, options):
    """Penalties count what each way has sampled: drafts that come true, drafts that do not, and steps without."""
    truth = ran(make_llm(speculate="off"))
    drafter = Now(truth)
    llm = make_llm(drafter=drafter, **options)
    counts = counted(llm, monkeypatch)
    assert ran(llm) == truth
    stats = llm._engine._loop._scheduler.stats
    assert stats.drafts_accepted > 10 and stats.drafts_rejected > 3
    assert counts["once"] > 3 and counts["rows"] > 3 and drafter.asked > 3
    assert ("num_blocks" in options) == (stats.preemptions > 0)
