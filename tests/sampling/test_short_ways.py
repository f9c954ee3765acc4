"""What spares the sampler work changes no bit: largest logits kept by the session, nuclei without their edge, edits of
a few blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sampling_twin as twin
from head import WIDTH, Head

from octavo import _native
from octavo.backends.native.executor import usable_isas
from octavo.request import Request, SamplingParams
from octavo.sampling.sampler import Sampler, SampleRow

ALL_ISAS = (0, 1, 2, 3, -1)
WISHES = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 5},
    {"logprobs": 2, "logprobs_mode": "processed", "top_p": 0.9},
    {},
    {"temperature": 0.3},
    {"top_k": 20, "top_p": 0.9},
    {"top_p": 0.8},
    {"min_p": 0.05, "top_p": 0.95},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"repetition_penalty": 1.3, "top_p": 0.7, "logprobs": 3},
    {"logit_bias": {0: 4.0, 17: -100.0}},
    {"allowed_token_ids": (0, 3, 20)},
)


def head_of(vocab, *, isa=None, threads=1):
    rng = np.random.default_rng(vocab)
    rows = rng.standard_normal((40, WIDTH))
    rows[7] = np.nan
    matrix = rng.standard_normal((vocab, WIDTH)) * 0.3
    matrix[rng.random(vocab) < 0.3] = matrix[0]  # ties
    return Head(rows, matrix, isa=isa, threads=threads)


def rows_of(vocab, count):
    made = []
    for number in range(count):
        params = SamplingParams(**WISHES[number % len(WISHES)])
        request = Request(str(number), tuple(range(0, min(vocab, 40), 3)), params, seed=number)
        request.output_ids.extend([number % vocab, 5 % vocab])
        made.append(SampleRow(request, number, 90 + number))
    return made


@pytest.mark.parametrize("isa", usable_isas())
@pytest.mark.parametrize("vocab", [21, 32, 64, 65, 97, 4999])
def test_largest_logits_kept_by_a_session_change_no_choice(vocab, isa):
    head = head_of(vocab, isa=isa)
    for tokens in (range(40), range(39, 30, -1), range(5, 38)):  # later steps leave rows of earlier ones behind
        kept, array = head.run(list(tokens))
        rows = rows_of(vocab, len(tokens))
        want = Sampler(vocab).sample(array, rows)
        assert Sampler(vocab).sample(kept, rows) == want
        assert [i for i, sampled in enumerate(want) if not sampled.finite] == [
            i for i, t in enumerate(tokens) if t == 7
        ]
        targets = [(i, i % vocab, 3) for i in range(len(tokens))]
        assert Sampler(vocab).prompt_logprobs(kept, targets) == Sampler(vocab).prompt_logprobs(array, targets)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_a_head_keep_the_same_largest(threads):
    kept, array = head_of(9001, threads=threads).run(list(range(40)))
    rows = rows_of(9001, 40)
    assert Sampler(9001, threads).sample(kept, rows) == Sampler(9001).sample(array, rows)


def state_of(seed, **options):
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "prompt": []}
    return _native.SamplingState(**usual | options, presence=0.0, frequency=0.0, seed=seed, bias=[], allowed=None)


def spread(kind, vocab, rng):
    x = rng.normal(0, 2.5, vocab)
    if kind == "flat":
        x = rng.normal(0, 0.01, vocab)
    elif kind == "equal":
        x[:] = -3.0
    elif kind == "ties":
        x = np.round(x)
    elif kind == "steep":
        x = -np.sort(rng.exponential(4.0, vocab))
    elif kind == "holes":
        x[rng.random(vocab) < 0.8] = -np.inf
        x[int(rng.integers(0, vocab))] = 0.5
    elif kind == "far":
        x = np.where(rng.random(vocab) < 0.01, x, x - 95.0)
        x[int(rng.integers(0, vocab))] = 9.0
    return x.astype(np.float32)


NUCLEI = (
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 0.05},
    {"top_p": 1e-7},
    {"top_p": 0.9999},
    {"top_p": 1.0 - 2.0**-40},
    {"top_p": 0.9, "min_p": 0.02},
    {"top_p": 0.3, "min_p": 0.5},
    {"top_p": 0.9, "temperature": 0.2},
    {"top_p": 0.9, "temperature": 30.0},
)


@pytest.mark.parametrize("kind", ["normal", "flat", "equal", "ties", "steep", "holes", "far"])
@pytest.mark.parametrize("vocab", [1, 63, 65, 700, 5003])
def test_a_nucleus_without_its_edge_gives_the_token_of_the_one_with_it(vocab, kind):
    """Who asks for processed log-probabilities gets the edge found, and with it the token."""
    rng = np.random.default_rng(vocab)
    logits = np.stack([spread(kind, vocab, rng) for _ in range(4)])
    states = [state_of(seed, **options) for options in NUCLEI for seed in range(12)]
    choices = list(itertools.product(states, range(4), (3, 4)))
    long = _native.sample(logits, [(state, row, at, (), (), None, 0, True) for state, row, at in choices])
    want = [token for token, _, _ in long]
    assert -1 not in want
    for isa in ALL_ISAS:
        short = _native.sample(logits, [(state, row, at) for state, row, at in choices], isa=isa)
        assert [token for token, _, _ in short] == want
        raw = _native.sample(logits, [(state, row, at, (), (), None, 2, False) for state, row, at in choices], isa=isa)
        assert [token for token, _, _ in raw] == want


def test_tokens_at_the_very_edge_of_a_nucleus():
    """Weights cannot tell here: the mass before a token is top_p of all, give or take one token's."""
    for count, vocab in itertools.product((10, 100, 1000), (1000, 5000)):
        logits = np.full((1, vocab), -np.inf, np.float32)
        logits[0, :: vocab // count] = 2.0
        ids = np.flatnonzero(np.isfinite(logits[0]))
        for keep in (1, count // 2, count - 1):
            state = state_of(3, top_p=keep / count)
            got = {token for token, _, _ in _native.sample(logits, [(state, 0, index) for index in range(40 * count)])}
            assert got <= set(ids[: keep + 1].tolist())
            assert count > 100 or got >= set(ids[:keep].tolist())


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 30, "temperature": 0.8}])
def test_edits_of_a_few_blocks_equal_the_twin(options):
    """Vocabularies take turns, so that what one row left behind would be seen by the next."""
    rng = np.random.default_rng(8)
    for number in range(60):
        vocab = (130, 3000, 64, 999)[number % 4]
        wish = options | {
            "repetition_penalty": float(rng.choice([1.0, 1.4])),
            "frequency_penalty": float(rng.choice([0.0, 0.6])),
            "logit_bias": {int(t): float(rng.uniform(-5, 5)) for t in rng.integers(0, vocab, number % 3)},
        }
        if number % 7 == 0:
            wish["allowed_token_ids"] = rng.integers(0, vocab, 20).tolist()
        mask = None
        if number % 5 == 0:
            mask = np.full(-(-vocab // 32), 0xFFFFFFFF, np.uint32)
            mask[rng.random(len(mask)) < 0.5] = rng.integers(1, 2**32)
        prompt, output = rng.integers(0, vocab, 12).tolist(), rng.integers(0, vocab, 5).tolist()
        made = Request(str(number), tuple(prompt), SamplingParams(**wish), seed=number)
        made.output_ids.extend(output)
        logits = rng.normal(0, 2, (1, vocab)).astype(np.float32)
        if not np.isfinite(twin.processed(logits[0], made.params, prompt, output, mask=mask)).any():
            continue
        expected = twin.choose(logits[0], made.params, number, 50, prompt, output, mask=mask)
        before = logits.copy()
        assert Sampler(vocab).sample(logits, [SampleRow(made, 0, 50, (), mask)])[0].token_id == expected
        assert np.array_equal(logits, before)


@pytest.mark.parametrize("repetition", [1.5, 0.6])
def test_changed_blocks_are_read_as_changed_whoever_reads_them(repetition):
    """Draws read few of the blocks that penalties change, exact masses all of them."""
    rng = np.random.default_rng(2)
    for vocab, spread_of in itertools.product((70, 700, 5003), (0.05, 1.0, 3.0)):
        logits = rng.normal(0, spread_of, (1, vocab)).astype(np.float32)
        prompt = sorted(set(rng.integers(0, vocab, 60).tolist()))
        wishes = ({}, {"top_p": 0.9}, {"top_p": 0.4, "min_p": 0.01}, {"top_k": 9})
        states = [state_of(seed, repetition=repetition, prompt=prompt, **wish) for seed in range(8) for wish in wishes]
        long = _native.sample(logits, [(state, 0, 4, (), (), None, 1, True) for state in states])
        params = SamplingParams(repetition_penalty=repetition)
        want = twin.log_softmax(twin.processed(logits[0], params, prompt))
        (chosen, logprob, rank), (first, *_) = long[0][2]  # of the first state, nothing is cut away
        assert logprob == pytest.approx(want[chosen], abs=1e-5) and rank == 1 + int((want > want[chosen]).sum())
        assert first == int(np.argmax(want))
        for isa in ALL_ISAS:
            short = _native.sample(logits, [(state, 0, 4) for state in states], isa=isa)
            assert [token for token, _, _ in short] == [token for token, _, _ in long]
