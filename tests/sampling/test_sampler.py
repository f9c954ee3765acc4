"""Native sampling against its twin, and the rules that the twin cannot show: exactness, extremes, bookkeeping."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import sampling_twin as twin

from octavo import _native
from octavo.request import Request, Row, SamplingParams
from octavo.runner.batch import HeaderWriter
from octavo.sampling.sampler import Sampler, SampleRow


def request(number=0, prompt=(1, 2), output=(), seed=0, eos=(), bad_words=(), **params):
    made = Request(str(number), tuple(prompt), SamplingParams(**params), seed=seed, eos_ids=eos, bad_word_ids=bad_words)
    made.output_ids.extend(output)
    return made


def choose(logits, made, index=None, extra=(), mask=None, sampler=None):
    logits = np.ascontiguousarray(np.atleast_2d(logits), np.float32)
    sampler = sampler or Sampler(logits.shape[1])
    index = made.num_tokens + len(extra) if index is None else index
    return sampler.sample(logits, [SampleRow(made, 0, index, tuple(extra), mask)])[0]


def rows_of(kind: str, vocab: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.normal(0, 3, vocab)
    if kind == "peaked":
        x[rng.integers(0, vocab, 3)] += 12
    elif kind == "flat":
        x = rng.normal(0, 0.01, vocab)
    elif kind == "equal":
        x[:] = 1.5
    elif kind == "ties":
        x = np.round(x)
    elif kind == "holes":
        x[rng.random(vocab) < 0.7] = -np.inf
        x[int(rng.integers(0, vocab))] = 0.5
    elif kind == "spike":
        x[:] = -1e30
        x[int(rng.integers(0, vocab))] = 1e30
    return x.astype(np.float32)


KINDS = ("normal", "peaked", "flat", "equal", "ties", "holes", "spike")
OPTIONS = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.6},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7, "temperature": 1.3},
    {"top_k": 100_000},
    {"top_p": 0.9},
    {"top_p": 0.31, "temperature": 2.0},
    {"top_p": 1e-9},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"min_p": 0.01, "top_k": 50, "top_p": 0.95, "temperature": 0.8},
    {"top_k": 2000, "top_p": 0.7},
)


@pytest.mark.parametrize("vocab", [1, 3, 64, 130, 4999])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_twin(vocab, kind):
    rng = np.random.default_rng(vocab * 100 + KINDS.index(kind))
    sampler = Sampler(vocab)
    for number, options in enumerate(OPTIONS):
        logits = rows_of(kind, vocab, rng)
        for seed in (0, 2**64 - 5, int(rng.integers(0, 2**63))):
            made = request(f"{number}/{seed}", seed=seed, **options)
            for index in (0, 7, 70_001):
                expected = twin.choose(logits, made.params, seed, index)
                assert choose(logits, made, index, sampler=sampler).token_id == expected, (options, seed, index)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_twin_at_full_size(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    logits = rows_of(kind, 49152, rng)
    sampler = Sampler(49152)
    for number, options in enumerate(OPTIONS):
        made = request(number, seed=number, **options)
        for index in range(3):
            assert choose(logits, made, index, sampler=sampler).token_id == twin.choose(
                logits, made.params, number, index
            ), options


def test_penalties_bias_bans_and_mask_equal_the_twin():
    rng = np.random.default_rng(5)
    vocab = 97
    sampler = Sampler(vocab)
    for number in range(300):
        options = {
            "temperature": float(rng.choice([0.0, 0.7])),
            "repetition_penalty": float(rng.choice([1.0, 1.3, 0.5])),
            "presence_penalty": float(rng.choice([0.0, 1.5, -2.0])),
            "frequency_penalty": float(rng.choice([0.0, 0.4, -0.3])),
            "logit_bias": {int(t): float(rng.uniform(-5, 5)) for t in rng.integers(0, vocab, rng.integers(0, 4))},
            "allowed_token_ids": [int(t) for t in rng.integers(0, vocab, 20)] if rng.random() < 0.3 else None,
        }
        prompt, output = rng.integers(0, vocab, 10).tolist(), rng.integers(0, vocab, rng.integers(0, 12)).tolist()
        extra = rng.integers(0, vocab, rng.integers(0, 4)).tolist()
        mask = rng.integers(0, 2**32, 4, dtype=np.uint32) if rng.random() < 0.3 else None
        made = request(number, prompt, output, seed=number, **options)
        logits = rng.normal(0, 2, vocab).astype(np.float32)
        if mask is not None and not np.isfinite(twin.processed(logits, made.params, mask=mask)).any():
            continue
        expected = twin.choose(logits, made.params, number, made.num_tokens, prompt, [*output, *extra], mask=mask)
        got = choose(logits, made, made.num_tokens, extra, mask, sampler)
        assert got.token_id == expected, options


def test_every_instruction_set_gives_the_same_bits():
    rng = np.random.default_rng(11)
    logits = np.stack([rows_of(kind, 5003, rng) for kind in KINDS])
    states = [
        _native.SamplingState(
            temperature=options.get("temperature", 1.0),
            top_k=options.get("top_k", 0),
            top_p=options.get("top_p", 1.0),
            min_p=options.get("min_p", 0.0),
            presence=0.0,
            frequency=0.0,
            repetition=1.0,
            seed=9,
            bias=[],
            allowed=None,
            prompt=[],
        )
        for options in OPTIONS
    ]
    for processed in (False, True):
        rows = [
            (state, row, index, (), (), None, 5, processed)
            for state, row, index in itertools.product(states, range(len(KINDS)), (1, 2))
        ]
        portable = _native.sample(logits, rows, isa=0)
        assert all(finite for _, finite, _ in portable)
        for isa in (1, 2, 3, -1):
            assert _native.sample(logits, rows, isa=isa) == portable


def test_noise_is_philox_and_gumbel():
    # Random123's known answer for Philox4x32-10, all-zero counter and key.
    words = [int(word[0]) for word in twin.philox(0, 0, np.arange(1))]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    expected = twin.noise(0x1234567890ABCDEF, 77, 1000)
    got = [_native.gumbel_noise(0x1234567890ABCDEF, 77, token, 0) for token in range(1000)]
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert _native.gumbel_noise(1, 2, 3, 0) != _native.gumbel_noise(1, 2, 3, 1)


@pytest.mark.parametrize("options", [{}, {"top_p": 0.99999999}])
def test_the_luckiest_token_is_never_skipped(options):
    """A token far down that wins, or loses, by a hair through the largest noise of the row."""
    vocab, sampler = 49152, Sampler(49152)
    for index in range(20):
        made = request(index, seed=index, **options)
        noise = twin.noise(index, index, vocab)
        lucky, first = int(np.argmax(noise)), int(np.argmin(noise))
        for margin, winner in ((0.001, lucky), (-0.001, first)):
            logits = np.full(vocab, -80.0, np.float32)
            logits[first] = 0.0
            logits[lucky] = noise[first] - noise[lucky] + margin
            assert logits[lucky] < -8  # outside of anything that is taken for likely
            assert choose(logits, made, index, sampler=sampler).token_id == winner


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"temperature": 0.5, "top_k": 6}, {"min_p": 0.2}])
def test_frequencies_follow_the_distribution(options):
    logits = np.array([2.0, 1.5, 1.5, 0.3, -1.0, 0.9, -3.0, 1.1], np.float32)
    made = request(seed=3, **options)
    sampler = Sampler(8)
    draws = 20_000
    got = np.bincount([choose(logits, made, i, sampler=sampler).token_id for i in range(draws)], minlength=8)
    ids = twin.survivors(logits.astype(np.float64), made.params)
    p = np.zeros(8)
    p[ids] = np.exp(logits[ids].astype(np.float64) / made.params.temperature)
    p /= p.sum()
    assert got[p == 0].sum() == 0
    chi2 = (((got - draws * p) ** 2)[p > 0] / (draws * p[p > 0])).sum()
    assert chi2 < 30  # 7 degrees of freedom at most: far beyond the 99.9 % point of 24.3


def test_noise_is_independent_within_groups_and_across_them():
    sampler, logits, draws = Sampler(130), np.zeros(130, np.float32), 26_000  # two groups of 64 and two tokens
    made = request(seed=12)
    got = np.bincount([choose(logits, made, i, sampler=sampler).token_id for i in range(draws)], minlength=130)
    assert ((got - draws / 130) ** 2 / (draws / 130)).sum() < 190  # 129 degrees of freedom: the 99.9 % point is 182
    e = np.exp(-np.stack([twin.noise(5, index, 64) for index in range(4000)]))
    assert abs(e.mean() - 1) < 0.01 and abs((e**2).mean() - 2) < 0.05
    off = np.corrcoef(e.T) - np.eye(64)
    assert np.abs(off).max() < 0.08 and abs(off.sum() / (64 * 63)) < 0.002


def test_successive_tokens_and_seeds_are_independent():
    logits = np.zeros(4, np.float32)
    sampler = Sampler(4)
    draws = [choose(logits, request(seed, seed=seed), 5, sampler=sampler).token_id for seed in range(4000)]
    pairs = np.bincount([4 * a + b for a, b in itertools.pairwise(draws)], minlength=16)
    expected = (len(draws) - 1) / 16
    assert ((pairs - expected) ** 2 / expected).sum() < 45  # 15 degrees of freedom


def test_a_row_does_not_depend_on_its_batch_mates():
    rng = np.random.default_rng(2)
    logits = np.stack([rows_of(KINDS[i % 6], 1000, rng) for i in range(24)])
    made = [request(i, seed=i, logprobs=3, **OPTIONS[i % len(OPTIONS)]) for i in range(24)]
    alone = [choose(logits[i], made[i], 40) for i in range(24)]
    for order in (range(24), reversed(range(24)), (3, 3, 1)):
        order = list(order)
        together = Sampler(1000).sample(logits, [SampleRow(made[i], i, 40) for i in order])
        assert together == [alone[i] for i in order]


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_change_nothing(threads):
    rng = np.random.default_rng(5)
    logits = np.stack([rows_of(KINDS[i % 6], 8192, rng) for i in range(40)])  # enough work for every thread
    logits[7] = np.float32(1e-42)  # all denormal: the kernels' threads flush those, sampling does not
    logits[7, 5000] = 2e-42
    made = [request(i, seed=i, logprobs=i % 3, **OPTIONS[i % len(OPTIONS)]) for i in range(40)]
    made[7] = request(7, temperature=0.0, logprobs=1)
    rows = [SampleRow(one, i, 40) for i, one in enumerate(made)]
    alone, several = Sampler(8192), Sampler(8192, threads)
    assert several.sample(logits, rows) == alone.sample(logits, rows)
    assert several.sample(logits, rows)[7].token_id == 5000
    targets = [(i, 3 * i, 5) for i in range(40)]
    assert several.prompt_logprobs(logits, targets) == alone.prompt_logprobs(logits, targets)


def test_top_k_off_and_on_in_one_batch():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (2, 128)).astype(np.float32)
    made = [request(0, temperature=0.0), request(1, seed=4, top_k=64, top_p=0.95)]
    together = Sampler(128).sample(logits, [SampleRow(made[0], 0, 3), SampleRow(made[1], 1, 3)])
    assert together == [choose(logits[0], made[0], 3), choose(logits[1], made[1], 3)]


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-12])
def test_tiny_temperatures_are_greedy_when_the_first_is_unique(temperature):
    rng = np.random.default_rng(6)
    for scale in (1.0, 1e4, 1e30, 3e38):
        logits = (rng.uniform(-1, 1, 3000) * scale).astype(np.float32)
        logits[17] = 1.1 * scale if scale < 3e38 else np.finfo(np.float32).max
        for seed in range(5):
            for options in ({}, {"top_p": 0.9}, {"top_k": 40, "min_p": 0.1}):
                made = request(seed=seed, temperature=temperature, logprobs=2, logprobs_mode="processed", **options)
                got = choose(logits, made, seed)
                assert got.token_id == 17 and got.finite
                assert all(not math.isnan(logprob) for _, logprob, _ in got.logprobs.entries)


def test_greedy_ties_go_to_the_lower_id():
    logits = np.array([0.0, 3.0, -1.0, 3.0, 3.0], np.float32)
    assert choose(logits, request(temperature=0.0)).token_id == 1
    assert choose(np.array([-0.0, 0.0], np.float32), request(temperature=0.0)).token_id == 0


def test_equal_scores_go_to_the_lower_id():
    vocab, found = 1 << 19, 0
    sampler = Sampler(vocab)
    for index in range(700):  # two groups with the same least noise
        words, whose, *_ = twin.philox(7, index, np.arange(vocab // 64), level=1)
        order = np.argsort(words, kind="stable")
        for place in np.flatnonzero(np.diff(words[order]) == 0):
            pair = order[place : place + 2]
            lower, higher = sorted((64 * pair + whose[pair].astype(np.int64) % 64).tolist())
            logits = np.full(vocab, -np.inf, np.float32)
            logits[[lower, higher]] = 1.0
            for number, options in enumerate(({}, {"top_k": 2}, {"top_p": 0.9})):
                made = request(number, seed=7, **options)
                assert choose(logits, made, index, sampler=sampler).token_id == lower
            found += 1
    assert found >= 2


def test_top_k_and_top_p_ties_keep_the_lower_ids():
    logits = np.zeros(200, np.float32)
    sampler = Sampler(200)
    for options, kept in (({"top_k": 5}, 5), ({"top_p": 0.1}, 20), ({"top_k": 150, "top_p": 0.2}, 30)):
        made = request(str(options), seed=1, **options)
        seen = {choose(logits, made, index, sampler=sampler).token_id for index in range(600)}
        assert seen == set(range(kept))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5, "logprobs": 2}])
def test_a_bad_row_is_said_to_be_bad_and_spares_its_mates(bad, options):
    logits = np.zeros((3, 100), np.float32)
    logits[1, 70] = bad
    made = [request(i, **options) for i in range(3)]
    got = Sampler(100).sample(logits, [SampleRow(made[i], i, 4) for i in range(3)])
    assert [sampled.finite for sampled in got] == [True, False, True]
    assert got[1].token_id == -1 and got[1].logprobs is None
    assert got[0] == choose(logits[0], made[0], 4)


def test_nothing_left_to_choose_is_not_finite():
    assert not choose(np.full(40, -np.inf), request()).finite
    assert not choose(np.zeros(40), request(), mask=np.zeros(2, np.uint32)).finite


def test_penalties_do_not_overflow():
    logits = np.array([3e38, -3e38, 1.0], np.float32)
    made = request(prompt=(0, 1), repetition_penalty=1e-6, temperature=1.0)
    assert choose(logits, made).token_id == 0
    made = request(prompt=(0, 1), repetition_penalty=100.0, temperature=1.0)
    assert choose(logits, made).finite


COHORT = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.8},
    {"top_k": 40, "top_p": 0.6, "min_p": 0.01},
    {"min_p": 0.2},
    {"logit_bias": {3: 5.0, 7: -100.0}},
    {"allowed_token_ids": (1, 2, 80)},
]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_cohort_samples_what_its_rows_sample_alone(threads):
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 3, (2 * len(COHORT), 9000)).astype(np.float32)
    logits[5, 17] = np.nan
    requests = [Request(str(i), (1, 2), SamplingParams(**COHORT[i % len(COHORT)]), seed=i) for i in range(len(logits))]
    sampler = Sampler(logits.shape[1], threads)
    cohort = sampler.cohort(requests)
    writer = HeaderWriter(8, 8, 8)
    for step in range(4):
        rows = [Row(request.id, i, 1 + step * i, (5,), 0, True) for i, request in enumerate(requests)]
        alone = [
            Sampler(logits.shape[1]).sample(logits, [SampleRow(request, i, row.start + 1)])[0].token_id
            for i, (request, row) in enumerate(zip(requests, rows, strict=True))
        ]
        assert list(cohort.sample(logits, writer.write(rows))) == alone
        assert alone[5] == -1


COUNTED = [
    {"repetition_penalty": 1.3},
    {},
    {"frequency_penalty": 0.7, "presence_penalty": -0.4, "temperature": 0.0},
    {"presence_penalty": 1.1, "top_p": 0.9},
]


def test_a_cohort_counts_the_output_as_it_grows_and_finds_it_again_after_other_steps():
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 1, (len(COUNTED), 40)).astype(np.float32)  # few tokens, so that they come again
    requests = [Request(str(i), (1, 2, 3), SamplingParams(**wish), seed=i) for i, wish in enumerate(COUNTED)]
    sampler, writer = Sampler(40), HeaderWriter(8, 8, 8)
    cohort = sampler.cohort(requests)
    for step in range(24):
        rows = [Row(r.id, i, 2 + step, (r.token(2 + step),), 0, True) for i, r in enumerate(requests)]
        asked = [SampleRow(request, i, 3 + step) for i, request in enumerate(requests)]
        alone = [Sampler(40).sample(logits, [row])[0].token_id for row in asked]
        if step % 8 == 7:  # a step of another kind, and requests that are met again as new mates
            chosen = [one.token_id for one in sampler.sample(logits, asked)]
            cohort = sampler.cohort(requests)
        else:
            chosen = list(cohort.sample(logits, writer.write(rows)))
        assert chosen == alone
        for request, token in zip(requests, chosen, strict=True):
            request.output_ids.append(token)
    assert max(len(set(request.output_ids)) for request in requests) < 24  # penalties had something to count
    ahead = [Row(r.id, i, 30, (5,), 0, True) for i, r in enumerate(requests)]
    with pytest.raises(ValueError, match="not one of this cohort"):
        cohort.sample(logits, writer.write(ahead))


def test_a_cohort_refuses_another_step_and_requests_that_want_more():
    logits = np.zeros((3, 64), np.float32)
    requests = [Request(str(i), (1,), SamplingParams()) for i in range(2)]
    sampler = Sampler(64)
    cohort = sampler.cohort(requests)
    for tokens, count in ((1, 1), (1, 3), (2, 2)):
        rows = [Row(str(i), i, 1, (5,) * tokens, 0, True) for i in range(count)]
        with pytest.raises(ValueError, match="not one of this cohort"):
            cohort.sample(logits, HeaderWriter(8, 8, 8).write(rows))
    for wish in ({"logprobs": 0}, {"prompt_logprobs": 0}, {"min_tokens": 2}):
        assert sampler.cohort([*requests, Request("x" + str(wish), (1,), SamplingParams(**wish))]) is None
