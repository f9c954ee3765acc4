"""What a spot tells of real logits, beside the twin; verdicts of steps: the same whoever shares the step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sampling_twin as twin
from chance import chi_square

from octavo import _native
from octavo.request import Request, Row, SamplingParams
from octavo.sampling.sampler import Sampler, SampleRow
from octavo.sampling.seeds import uniform
from octavo.sampling.spot import NativeSpot, judge

DRAWS = 200_000


def request(seed=0, output=(), **params):
    made = Request("r", (1, 2), SamplingParams(**params), seed=seed)
    made.output_ids.extend(output)
    return made


def spot(logits, made, extra=(), sampler=None, root=5):
    sampler = sampler or Sampler(logits.shape[1])
    return NativeSpot(sampler, logits, SampleRow(made, 0, made.num_tokens + len(extra), tuple(extra)), root, 0)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6, "top_k": 30},
        {"top_p": 0.8},
        {"min_p": 0.05, "temperature": 1.4},
        {"frequency_penalty": 1.0, "repetition_penalty": 1.3, "logit_bias": {7: 3.0}},
        {"allowed_token_ids": tuple(range(0, 5000, 3))},
    ],
)
def test_chances_are_those_of_the_sampler(params):
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 3, (1, 5000)).astype(np.float32)
    made = request(output=(9, 9, 11), **params)
    x = twin.processed(logits[0], made.params, (1, 2), (9, 9, 11, 13))
    ids = twin.survivors(x, made.params)
    p = np.zeros(5000)
    p[ids] = np.exp((x[ids] - x.max()) / made.params.temperature)
    p /= p.sum()
    here = spot(logits, made, extra=(13,))
    order = np.argsort(-p)
    for token in (*order[:5], *order[60:70], *order[1000:1003], *order[-3:]):
        assert here.chance(int(token)) == pytest.approx(p[token], rel=1e-4, abs=1e-9)
        assert here.chance(int(token), least=1.0) in (0.0, pytest.approx(p[token], rel=1e-4))
    assert here.choice == Sampler(5000).sample(logits, [SampleRow(made, 0, made.num_tokens + 1, (13,))])[0].token_id
    flat = logits[0].astype(np.float64) / made.params.temperature
    q = np.exp(twin.log_softmax(flat))
    assert here.entropy() == pytest.approx(-(q * np.log(q + 1e-5)).sum())


def test_draws_apart_from_some_tokens():
    """However much of the mass those have."""
    p = np.array([0.9, 0.09, 0.004, 0.003, 0.002, 0.001])
    logits = np.log(p).astype(np.float32)[None]
    made, counts, draws = request(seed=3), np.zeros(6), 4000
    sampler = Sampler(6)
    for root in range(draws):
        counts[spot(logits, made, sampler=sampler, root=root).apart({0: 1.0, 1: 1.0})] += 1
    rest = np.where(p < 0.05, p, 0)
    statistic, point = chi_square(counts, draws * rest / rest.sum())
    assert statistic < point


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.7}, {"min_p": 0.1}])
def test_the_sampler_draws_what_the_model_says(options):
    """Chi-square over 200,000 draws, a seed each."""
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 1.5, (1, 64)).astype(np.float32)
    made = request(**options)
    ids = twin.survivors(logits[0].astype(np.float64), made.params)
    p = np.zeros(64)
    p[ids] = np.exp(logits[0, ids].astype(np.float64) / made.params.temperature)
    state = Sampler(64).encode(SampleRow(made, 0, 0))[0]
    rows = [(state, 0, index) for index in range(DRAWS)]
    counts = np.bincount([token for token, _, _ in _native.sample(logits, rows, -1, 1)], minlength=64)
    statistic, point = chi_square(counts, DRAWS * p / p.sum())
    assert statistic < point


def test_the_same_noise_makes_drafts_agree_nearly_as_often_as_can_be():
    """A drafter that takes argmax log q + noise, the target argmax log p + noise: they agree in nearly 1 - TV of all
    cases, far more often than a draw from q is a draw from p."""
    rng, rows = np.random.default_rng(3), 4000
    for sharp, least in ((0.5, 0.92), (1.5, 0.8)):
        base = rng.normal(0, 1.5, (rows, 32))
        target = base.astype(np.float32)
        draft = (base + rng.normal(0, sharp / 2, (rows, 32))).astype(np.float32)
        state = Sampler(32).encode(SampleRow(request(seed=1), 0, 0))[0]
        wanted = [(state, row, row) for row in range(rows)]
        taken = [[token for token, _, _ in _native.sample(logits, wanted, -1, 1)] for logits in (target, draft)]
        agree = np.mean(np.array(taken[0]) == np.array(taken[1]))
        p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (target.astype(float), draft.astype(float)))
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        optimum, apart = np.minimum(p, q).sum(1).mean(), (p * q).sum(1).mean()
        assert optimum * least < agree <= optimum + 0.03
        assert agree > apart + 0.1


def test_numbers_are_spread_evenly():
    found = [uniform(7, place, 2, 1) for place in range(20_000)]
    statistic, point = chi_square(np.histogram(found, 20, (0, 1))[0], np.full(20, 1000.0))
    assert statistic < point and len(set(found)) == 20_000


def step(sampler, logits, made, drafts, parents=(), first=0):
    known = made.num_tokens - 1
    count = len(drafts)
    row = Row("r", 0, known, (2, *drafts), 0, True, count, tuple(parent + 1 for parent in parents))
    return judge(sampler, logits, row, made, first)


@pytest.mark.parametrize("rule", ["residual", "block", "typical"])
@pytest.mark.parametrize("parents", [(), (-1, 0, -1)])
def test_a_verdict_depends_on_its_own_row_alone(rule, parents):
    rng = np.random.default_rng(5)
    own = rng.normal(0, 2, (4, 40)).astype(np.float32)
    q = np.exp(1.3 * own + rng.normal(0, 0.5, own.shape))
    q /= q.sum(1, keepdims=True)
    places = (0, 1, 0) if parents else (0, 1, 2)
    chances = tuple({token: float(chance) for token, chance in enumerate(q[place])} for place in places)
    lengths = set()
    for seed in range(60):
        verdicts = []
        for before in (0, 3):
            sampler = Sampler(40, rule=rule)
            made = request(seed=seed, temperature=0.9, top_p=0.9, logprobs=2)
            best = np.argsort(-own, axis=1)
            drafts = tuple(int(best[place, (seed + draft) % 8]) for draft, place in enumerate(places))
            sampler.drawn("r", drafts, chances)
            logits = np.concatenate([rng.normal(0, 2, (before, 40)).astype(np.float32), own])
            verdicts.append(step(sampler, logits, made, drafts, parents, before))
            assert sampler.drawn_from("r", drafts) == (None,) * 3, "taken once"
        assert verdicts[0] == verdicts[1] and verdicts[0].finite
        assert len(verdicts[0].sampled) == len(verdicts[0].accepted) + 1
        lengths.add(len(verdicts[0].accepted))
    assert len(lengths) > 1


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_log_probabilities_are_those_of_the_tokens_that_come(mode):
    rng = np.random.default_rng(6)
    logits = rng.normal(0, 2, (4, 200)).astype(np.float32)
    made = request(seed=1, temperature=0.8, top_k=150, logprobs=3, logprobs_mode=mode)
    sampler = Sampler(200, rule="residual")
    drafts = tuple(int(row.argmax()) for row in logits[:3])
    sampler.drawn("r", drafts, ({drafts[0]: 0.01, 3: 0.99}, {drafts[1]: 0.01, 4: 0.99}, {drafts[2]: 1.0}))
    verdict = step(sampler, logits, made, drafts)
    assert verdict.accepted[:2] == (1, 2)
    for place, one in enumerate(verdict.sampled):
        x = logits[place].astype(np.float64)
        if mode == "processed":
            x = np.where(x >= np.sort(x)[-150], x / 0.8, -np.inf)
        told = twin.log_softmax(x)
        assert one.logprobs.entries[0][0] == one.token_id and len(one.logprobs.entries) == 4
        for token, logprob, rank in one.logprobs.entries:
            assert logprob == pytest.approx(told[token], abs=1e-4)
            assert rank == 1 + int((told > told[token]).sum())


def test_a_row_that_is_not_finite_is_said():
    logits = np.full((2, 8), math.nan, np.float32)
    sampler = Sampler(8, rule="residual")
    sampler.drawn("r", (3,), ({3: 1.0},))
    assert not step(sampler, logits, request(), (3,)).finite
