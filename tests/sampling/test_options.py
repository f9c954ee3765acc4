"""Bans, counts and log-probabilities of the Sampler: what it remembers of a request, what it says of a choice."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sampling_twin as twin

from octavo.errors import RequestError
from octavo.request import Request, SamplingParams
from octavo.sampling.sampler import Sampler, SampleRow
from octavo.sampling.seeds import child_seed, mint_seed

VOCAB = 64


def request(name="r", prompt=(1, 2), output=(), seed=0, eos=(), bad_words=(), **params):
    made = Request(name, tuple(prompt), SamplingParams(**params), seed=seed, eos_ids=eos, bad_word_ids=bad_words)
    made.output_ids.extend(output)
    return made


def choose(sampler, logits, made, extra=(), mask=None):
    logits = np.ascontiguousarray(np.atleast_2d(logits), np.float32)
    return sampler.sample(logits, [SampleRow(made, 0, made.num_tokens + len(extra), tuple(extra), mask)])[0]


def greedy_output(logits, made, tokens, sampler=None):
    sampler = sampler or Sampler(VOCAB)
    for _ in range(tokens):
        made.output_ids.append(choose(sampler, logits, made).token_id)
    return made.output_ids


def favouring(*ids):
    """Logits that prefer `ids` in that order, then lower ids."""
    logits = -0.01 * np.arange(VOCAB, dtype=np.float32)
    for place, token in enumerate(ids):
        logits[token] = 20.0 - place
    return logits


def test_min_tokens_bans_every_eos_and_stop_id():
    made = request(temperature=0.0, min_tokens=5, stop_token_ids=[9], eos=(2, 7))
    assert greedy_output(favouring(7, 2, 9, 30), made, 7) == [30] * 5 + [7, 7]


def test_min_tokens_counts_drafts_before_the_row():
    sampler = Sampler(VOCAB)
    made = request(temperature=0.0, min_tokens=5, eos=(2, 7), output=(30, 30, 30))
    logits = favouring(7, 30)
    assert choose(sampler, logits, made, extra=(30,)).token_id == 30
    assert choose(sampler, logits, made, extra=(30, 30)).token_id == 7
    assert choose(sampler, logits, made).token_id == 30


def test_ids_that_end_but_lie_outside_the_vocabulary_are_no_ban():
    made = request(temperature=0.0, min_tokens=3, eos=(VOCAB + 5, 7))
    assert greedy_output(favouring(7, 8), made, 4) == [8, 8, 8, 7]


def test_bad_words_ban_the_last_token_after_the_others():
    logits = favouring(5, 6, 7)
    assert greedy_output(logits, request(temperature=0.0, bad_words=((5,),)), 2) == [6, 6]
    assert greedy_output(logits, request(temperature=0.0, bad_words=((5, 5, 5),)), 6) == [5, 5, 6, 5, 5, 6]
    assert greedy_output(logits, request(temperature=0.0, bad_words=((5, 6), (5, 5))), 4) == [5, 7, 5, 7]
    # The prompt ends with 5: a word that begins there is not completed in the output alone.
    assert greedy_output(logits, request(prompt=(5,), temperature=0.0, bad_words=((5, 5),)), 2) == [5, 6]


def test_bad_words_see_drafts_before_the_row():
    sampler = Sampler(VOCAB)
    made = request(temperature=0.0, bad_words=((5, 6, 5),), output=(5,))
    assert choose(sampler, favouring(5, 7), made, extra=(6,)).token_id == 7
    assert choose(sampler, favouring(5, 7), made, extra=(7,)).token_id == 5


def test_allowed_ids_are_all_there_is():
    made = request(temperature=1.0, seed=3, allowed_token_ids=[40, 3, 3, 17])
    assert set(greedy_output(favouring(5, 6), made, 200)) == {3, 17, 40}


def test_logit_bias_of_a_hundred_decides():
    assert choose(Sampler(VOCAB), favouring(5), request(logit_bias={33: 100.0}, temperature=0.5)).token_id == 33
    made = request(logit_bias={5: -100.0}, temperature=1.0)
    assert 5 not in greedy_output(favouring(5, 6), made, 50)


def test_the_mask_is_per_row_and_leaves_logits_alone():
    logits = favouring(5, 40)
    before = logits.copy()
    mask = np.full(2, 0xFFFFFFFF, np.uint32)
    mask[0] ^= 1 << 5
    sampler, made = Sampler(VOCAB), request(temperature=0.0, repetition_penalty=1.2, logit_bias={1: 2.0})
    assert choose(sampler, logits, made, mask=mask).token_id == 40
    assert choose(sampler, logits, made).token_id == 5
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    "params", [{"logit_bias": {191222: -100}}, {"allowed_token_ids": [VOCAB]}, {"stop_token_ids": [VOCAB]}]
)
def test_ids_outside_the_vocabulary_are_refused_by_name(params):
    sampler = Sampler(VOCAB)
    with pytest.raises(RequestError) as caught:
        choose(sampler, favouring(5), request(temperature=0.0, **params))
    assert caught.value.param == next(iter(params))
    assert choose(sampler, favouring(5), request("other", temperature=0.0)).token_id == 5


def test_counts_follow_the_output_when_it_grows_shrinks_or_changes():
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 1, VOCAB).astype(np.float32)
    options = {"temperature": 0.0, "frequency_penalty": 0.7, "repetition_penalty": 1.4, "presence_penalty": 0.2}
    sampler, made = Sampler(VOCAB), request(prompt=rng.integers(0, VOCAB, 20).tolist(), **options)
    for step in range(200):
        action = rng.integers(0, 4)
        if action == 0 and made.output_ids:
            del made.output_ids[int(rng.integers(0, len(made.output_ids))) :]
        elif action == 1 and made.output_ids:
            made.output_ids[-1] = int(rng.integers(0, VOCAB))
        else:
            made.output_ids.extend(rng.integers(0, VOCAB, int(rng.integers(1, 4))).tolist())
        extra = rng.integers(0, VOCAB, int(rng.integers(0, 3))).tolist()
        fresh = request("fresh", made.prompt_ids, made.output_ids, **options)
        expected = twin.choose(logits, made.params, 0, 0, made.prompt_ids, [*made.output_ids, *extra])
        assert choose(Sampler(VOCAB), logits, fresh, extra).token_id == expected
        assert choose(sampler, logits, made, extra).token_id == expected, step


def test_forget_frees_the_request_and_its_id():
    sampler = Sampler(VOCAB)
    assert choose(sampler, favouring(5), request("a", temperature=0.0)).token_id == 5
    sampler.forget("a")
    sampler.forget("never seen")
    assert choose(sampler, favouring(5), request("a", temperature=0.0, logit_bias={6: 100.0})).token_id == 6


# ---- log-probabilities


@pytest.mark.parametrize("vocab", [3, 64, 5000])
def test_raw_logprobs_are_the_log_softmax(vocab):
    rng = np.random.default_rng(vocab)
    sampler = Sampler(vocab)
    for number in range(20):
        logits = rng.normal(0, 4, vocab).astype(np.float32)
        made = request(str(number), seed=number, logprobs=20, temperature=3.0, logit_bias={0: 5.0}, top_k=2)
        got = choose(sampler, logits, made)
        expected = twin.log_softmax(logits)
        order = np.lexsort((np.arange(vocab), -logits))
        chosen, *top = got.logprobs.entries
        assert chosen[0] == got.token_id and order[chosen[2] - 1] == got.token_id
        assert [token for token, _, _ in top] == order[:20].tolist()
        assert [rank for _, _, rank in top] == list(range(1, len(top) + 1))
        for token, logprob, _ in got.logprobs.entries:
            assert logprob == pytest.approx(expected[token], abs=2e-6)
        if vocab <= 20:
            assert sum(math.exp(logprob) for _, logprob, _ in top) == pytest.approx(1.0, abs=1e-6)


def test_processed_logprobs_are_of_what_is_sampled():
    rng = np.random.default_rng(4)
    sampler = Sampler(VOCAB)
    options = {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3}
    for number in range(30):
        logits = rng.normal(0, 2, VOCAB).astype(np.float32)
        made = request(str(number), seed=number, logprobs=20, logprobs_mode="processed", **options)
        x = twin.processed(logits, made.params, made.prompt_ids)
        kept = twin.survivors(x, made.params)
        got = choose(sampler, logits, made).logprobs.entries
        assert [token for token, _, _ in got[1:]] == kept.tolist()
        assert sum(math.exp(logprob) for _, logprob, _ in got[1:]) == pytest.approx(1.0, abs=1e-6)
        expected = twin.log_softmax(x[kept] / 0.7)
        np.testing.assert_allclose([logprob for _, logprob, _ in got[1:]], expected, atol=2e-6)
        assert got[0] == got[got[0][2]]


def test_logprobs_of_a_small_vocabulary_are_as_many_as_there_are():
    logits = np.array([[0.0, 1.0, -np.inf]], np.float32)
    got = choose(Sampler(3), logits, request(temperature=0.0, logprobs=20))
    assert [(token, rank) for token, _, rank in got.logprobs.entries] == [(1, 1), (1, 1), (0, 2)]
    assert choose(Sampler(3), logits, request(temperature=0.0)).logprobs is None
    assert len(choose(Sampler(3), logits, request("z", temperature=0.0, logprobs=0)).logprobs.entries) == 1


def test_logprobs_of_one_row_do_not_depend_on_the_choice():
    logits = np.random.default_rng(1).normal(0, 3, VOCAB)
    sampler = Sampler(VOCAB)
    alone = choose(sampler, logits, request("a", temperature=0.0, logprobs=5)).logprobs.entries[1:]
    other = choose(sampler, logits, request("b", seed=5, temperature=9.0, top_p=0.5, logprobs=5)).logprobs.entries[1:]
    assert alone == other


def test_prompt_logprobs():
    rng = np.random.default_rng(12)
    logits = rng.normal(0, 3, (4, 3000)).astype(np.float32)
    logits[3, 5] = np.nan
    wanted = [(2, 17, 3), (0, 2999, 0), (3, 1, 2)]
    first, second, bad = Sampler(3000).prompt_logprobs(logits, wanted)
    assert bad.entries == ()
    for got, (row, target, top) in zip((first, second), wanted, strict=False):
        expected = twin.log_softmax(logits[row])
        order = np.lexsort((np.arange(3000), -logits[row]))
        assert [token for token, _, _ in got.entries] == [target, *order[:top].tolist()]
        assert order[got.entries[0][2] - 1] == target
        np.testing.assert_allclose(
            [logprob for _, logprob, _ in got.entries], expected[[e[0] for e in got.entries]], atol=2e-6
        )


# ---- seeds


def test_a_seeded_request_ignores_its_unseeded_mates():
    """Same tokens in four runs, whatever the other request's seed is; logits depend on the last token."""
    table = np.random.default_rng(0).normal(0, 1, (VOCAB, VOCAB)).astype(np.float32)
    runs = []
    for mate_seed in (1, 2, 3, 4):
        sampler, pair = Sampler(VOCAB), [request("a", seed=42), request("b", seed=mate_seed)]
        for _ in range(16):
            logits = np.stack([table[r.token(r.num_tokens - 1)] for r in pair])
            got = sampler.sample(logits, [SampleRow(r, i, r.num_tokens) for i, r in enumerate(pair)])
            for made, sampled in zip(pair, got, strict=True):
                made.output_ids.append(sampled.token_id)
        runs.append([list(made.output_ids) for made in pair])
    assert len({tuple(run[0]) for run in runs}) == 1
    assert len({tuple(run[1]) for run in runs}) == 4


def test_children_have_seeds_of_their_own_and_one_keeps_the_seed():
    assert child_seed(42, 0, 1) == 42
    assert child_seed(-1, 0, 1) == 2**64 - 1
    seeds = [child_seed(seed, child, 8) for seed in (0, 42, -1) for child in range(8)]
    assert len(set(seeds)) == 24 and all(0 <= seed < 2**64 for seed in seeds)
    assert child_seed(42, 3, 8) == child_seed(42, 3, 4)


def test_minted_seeds_survive_json_and_differ():
    seeds = {mint_seed() for _ in range(100)}
    assert len(seeds) == 100 and all(seed == int(float(seed)) for seed in seeds)
