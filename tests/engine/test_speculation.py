"""Lookups in a real engine: the same tokens and log-probabilities with and without; a drafter that fails."""

import logging
from dataclasses import replace

import pytest
from engines import settle
from tiny_model import VOCAB
from toy_drafter import ToyDrafter

from octavo import SamplingParams
from octavo.drafters.port import Proposal

REPEATED = "one two three four, one two three four, one two three four, one two"
PROMPTS = [REPEATED, "abc abc abc abc abc", "Hello the man", REPEATED + " three four five six"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2, allowed_token_ids=[20, 21, 22]),
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, repetition_penalty=1.05),
    SamplingParams(temperature=0.8, seed=7, max_tokens=40, logprobs=1, allowed_token_ids=[30, 31]),
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, speculate=False),
]


def said(llm):
    """The reference's log-probabilities differ in their last bits with who shares a step."""
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    native = llm.config.executor == "native"
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs if native else None) for output in outputs]


@pytest.mark.parametrize("kind", ["ngram", "suffix", "auto"])
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 13}, {"num_blocks": 24}])
def test_text_does_not_depend_on_who_proposes(make_llm, kind, options):
    plain = said(make_llm(speculate="off"))
    llm = make_llm(speculate=kind, **options)
    assert said(llm) == plain
    assert said(llm) == plain, "with what is kept of the first time"
    settle(llm)
    stats = llm.stats()
    assert (stats.drafts > 0) == (kind != "auto" or llm.config.executor == "native")
    if kind != "auto":
        assert stats.drafts_accepted > 0


def test_lookups_are_the_default_of_models_that_can_take_drafts_back(make_llm):
    llm = make_llm()
    assert llm.config.speculate == "auto"
    llm.generate(REPEATED, PARAMS[0], use_tqdm=False)
    assert (llm.stats().drafts > 0) == (llm.config.executor == "native")


def test_what_became_of_drafts_is_told(make_llm):
    llm = make_llm(speculate="ngram")
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    stats = llm.stats()
    assert sum(output.drafts.proposed for output in outputs) == stats.drafts
    assert sum(output.drafts.accepted for output in outputs) == stats.drafts_accepted == sum(stats.accepted_at)
    assert sum(output.drafts.steps for output in outputs) == stats.draft_steps
    first, silent = outputs[0].drafts, outputs[3].drafts
    assert first.length == 1 + first.accepted / first.steps > 1
    assert (silent.proposed, silent.length) == (0, 1.0)
    assert list(stats.accepted_at) == sorted(stats.accepted_at, reverse=True)


def test_a_request_may_limit_its_drafts(make_llm):
    plain = said(make_llm(speculate="off"))
    llm = make_llm(speculate="ngram")
    params = [replace(each, speculate=2 if each.speculate else False) for each in PARAMS]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [ids for ids, _ in plain]
    assert 0 < outputs[0].drafts.proposed <= 2 * outputs[0].drafts.steps
    assert len(llm.stats().accepted_at) <= 2


PORT = ("serves", "follow", "extend", "propose", "forget")


@pytest.mark.parametrize("method", PORT)
@pytest.mark.parametrize("after", [0, 9])
def test_whatever_fails_of_a_drafter_changes_nothing_and_is_reported_once(make_llm, caplog, monkeypatch, method, after):
    """At once, or after it has proposed for a while: wrong drafts, which have caches and rows behind them."""
    plain = said(make_llm())
    drafter, asked = ToyDrafter(VOCAB, lambda request, length: Proposal((3, 4, 5))), []
    whole = getattr(drafter, method)

    def failing(*args):
        asked.append(args)
        if len(asked) > after:
            raise RuntimeError("no more")
        return whole(*args)

    monkeypatch.setattr(drafter, method, failing)
    llm = make_llm(drafter=drafter)
    with caplog.at_level(logging.ERROR, "octavo.runner"):
        for _ in range(3):
            assert said(llm) == plain
    settle(llm)
    assert sum("drafter failed" in record.message for record in caplog.records) == (len(asked) > after)
    assert len(asked) == after + 1 or (method == "follow" and len(asked) <= after), "never asked again"


def test_a_drafter_that_fails_at_load_ends_the_load_and_nothing_else(make_llm, monkeypatch):
    def failing(weight):
        raise RuntimeError("no tensor")

    drafter = ToyDrafter(VOCAB, None)
    monkeypatch.setattr(drafter, "tensor", failing)
    with pytest.raises(RuntimeError, match="no tensor"):
        make_llm(drafter=drafter)
    assert said(make_llm())


class Failing(ToyDrafter):
    """Proposes what is no token, then raises."""

    def extend(self, session, rows):
        pass

    def propose(self, session, rows):
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 6:
            raise RuntimeError("no more")
        return [Proposal((VOCAB + 5, -1) if self.asked % 2 else (3, VOCAB))] * len(rows)


def test_a_drafter_that_fails_changes_nothing_and_is_reported_once(make_llm, caplog):
    plain = said(make_llm(speculate="off"))
    drafter = Failing(VOCAB, None)
    llm = make_llm(drafter=drafter)
    with caplog.at_level(logging.ERROR, "octavo.runner"):
        assert said(llm) == plain
        assert said(llm) == plain
    assert drafter.asked == 7
    assert sum("drafter failed" in record.message for record in caplog.records) == 1
    settle(llm)
