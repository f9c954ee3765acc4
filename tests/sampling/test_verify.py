"""Verification along chains and trees gives the tokens of plain decoding, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.request import Request, Row, SamplingParams
from octavo.sampling.sampler import Sampled, Sampler, SampleRow
from octavo.sampling.verify import nodes, verify, walk

VOCAB = 12
TABLE = np.random.default_rng(3).normal(0, 1.5, (VOCAB, VOCAB, VOCAB)).astype(np.float32)
PROMPT = (3, 1, 4)
OPTIONS = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 1.5, "min_tokens": 10},
    {"temperature": 0.0, "frequency_penalty": 2.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": -2.0, "presence_penalty": 0.5},
)


def target(tokens):
    """A model of two tokens' memory."""
    return TABLE[tokens[-2], tokens[-1]]


def new_request(options):
    return Request("r", PROMPT, SamplingParams(**options), seed=77, eos_ids=(5,), bad_word_ids=((2, 3), (6,)))


def decode(options, count):
    sampler, made = Sampler(VOCAB), new_request(options)
    while len(made.output_ids) < count:
        logits = target([*PROMPT, *made.output_ids])[None]
        made.output_ids.append(sampler.sample(logits, [SampleRow(made, 0, made.num_tokens)])[0].token_id)
    return made.output_ids


def draft_row(made, drafts, parents=()):
    """The last known token and the drafts; parents: index into drafts, -1 the last known token."""
    start = made.num_tokens - 1
    return Row(
        "r", 0, start, (made.token(start), *drafts), 0, True, len(drafts), tuple(parent + 1 for parent in parents)
    )


def step(sampler, made, row):
    """All rows in one call, as the runner does it, and lazily: both must agree."""
    known = [*PROMPT, *made.output_ids]
    tree = nodes(row)
    logits = np.stack([target([*known, *node.extra_ids]) for node in tree])
    rows = [SampleRow(made, i, node.index, node.extra_ids) for i, node in enumerate(tree)]
    together = verify(row, sampler.sample(logits, rows))
    calls = []

    def sample(node):
        calls.append(node.offset)
        return sampler.sample(logits, [rows[node.offset]])[0]

    assert walk(row, sample) == together
    assert calls == [0, *together.accepted]
    return together


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["right", "wrong", "half", "random"])
def test_chains_equal_plain_decoding(options, kind):
    expected = decode(options, 60)
    rng = np.random.default_rng(1)
    sampler, made, accepted = Sampler(VOCAB), new_request(options), 0
    while len(made.output_ids) < 48:
        future = expected[len(made.output_ids) :][:4]
        if kind == "wrong":
            future = [(token + 1) % VOCAB for token in future]
        elif kind == "half":
            future[2:] = [(token + 1) % VOCAB for token in future[2:]]
        elif kind == "random":
            future = rng.integers(0, VOCAB, 4).tolist()
        got = step(sampler, made, draft_row(made, future))
        assert got.finite and len(got.token_ids) == len(got.accepted) + 1
        assert got.accepted == tuple(range(1, len(got.accepted) + 1))
        if kind in ("right", "wrong", "half"):
            assert len(got.accepted) == {"right": 4, "wrong": 0, "half": 2}[kind]
        accepted += len(got.accepted)
        made.output_ids.extend(got.token_ids)
    assert made.output_ids == expected[: len(made.output_ids)]
    assert kind == "wrong" or accepted > 0


@pytest.mark.parametrize("options", OPTIONS)
def test_trees_equal_plain_decoding(options):
    expected = decode(options, 70)
    rng = np.random.default_rng(2)
    sampler, made, depths = Sampler(VOCAB), new_request(options), set()
    while len(made.output_ids) < 48:
        future = expected[len(made.output_ids) :]
        # Siblings 0 and 1; the right one at random; under each a child, right or not; equal siblings 4 and 5.
        right = int(rng.integers(0, 2))
        first = [future[0] if i == right else (future[0] + 1) % VOCAB for i in range(2)]
        drafts = [*first, int(rng.integers(0, VOCAB)), future[1], future[2], future[2], future[3]]
        parents = (-1, -1, 0, 1, 3, 3, 4)
        got = step(sampler, made, draft_row(made, drafts, parents))
        assert 6 not in got.accepted  # the first of equal siblings is taken
        depths.add(len(got.accepted))
        made.output_ids.extend(got.token_ids)
    assert made.output_ids == expected[: len(made.output_ids)]
    assert {1, 4} <= depths


def test_nodes_count_positions_not_places():
    row = Row("r", 0, 10, (1, 2, 3, 4, 5, 6), 1, True, 4, (1, 1, 2, 4))
    assert [(node.offset, node.index, node.extra_ids) for node in nodes(row)] == [
        (1, 12, ()),
        (2, 13, (3,)),
        (3, 13, (4,)),
        (4, 14, (3, 5)),
        (5, 15, (3, 5, 6)),
    ]


def test_no_drafts_is_one_token():
    row = Row("r", 0, 5, (8, 9), 1, True)
    assert verify(row, [Sampled(4, None, True)]).token_ids == (4,)
    assert verify(row, [Sampled(4, None, True)]).accepted == ()


def test_a_bad_row_ends_the_walk_there_and_only_there():
    row = Row("r", 0, 5, (8, 1, 2), 0, True, 2)
    good, bad = Sampled(1, None, True), Sampled(-1, None, False)
    assert not verify(row, [good, bad, good]).finite
    assert verify(row, [Sampled(7, None, True), bad, bad]).finite  # the bad rows were not reached
