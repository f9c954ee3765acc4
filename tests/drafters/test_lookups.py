"""What lookups find, beside a search by hand; how many drafts are worth their rows; how long steps take."""

import random
from types import SimpleNamespace

import pytest

from octavo.drafters.ngram import LONGEST, Ngrams, NgramShelf
from octavo.drafters.pace import Pace
from octavo.drafters.port import DraftRow
from octavo.drafters.suffix import KEPT_GRAM, OUTPUTS, TENANTS, Automaton, Store, SuffixShelf
from octavo.drafters.text import TAKEN, TextDrafter
from octavo.drafters.worth import Worth
from octavo.request import Request, Row, RowResult, SamplingParams


def longest_before(tokens):
    """(length of the longest end that stood before, every place where that ended)."""
    for length in range(len(tokens) - 1, 0, -1):
        end = tokens[len(tokens) - length :]
        places = [at + length for at in range(len(tokens) - length) if tokens[at : at + length] == end]
        if places:
            return length, places
    return 0, [0]


@pytest.mark.parametrize("letters", [2, 3, 8])
def test_the_automaton_finds_the_longest_end_that_stood_before(letters):
    for seed in range(30):
        noise = random.Random(seed)
        automaton, tokens = Automaton(), []
        for _ in range(60):
            token = noise.randrange(letters)
            automaton.add(token)
            tokens.append(token)
            length, places = longest_before(tokens)
            found, end = automaton.matched
            assert found == length
            assert not length or end in places


def test_an_automaton_stays_small():
    automaton = Automaton()
    noise = random.Random(0)
    for _ in range(5000):
        automaton.add(noise.randrange(50))
    assert len(automaton._lengths) <= 2 * 5000


def test_ngrams_take_the_longest_and_the_latest():
    lookup = Ngrams()
    for token in [1, 2, 3, 4, 5, 9, 3, 4, 7, 1, 2, 3, 4]:
        lookup.add(token)
    assert lookup.follow(3) == [5, 9, 3], "four agree at the beginning, two later"
    lookup.add(8)
    assert lookup.follow(3) == ()
    assert LONGEST == 4


def test_a_store_forgets_the_oldest_and_nothing_else():
    store = Store()
    for number in range(OUTPUTS + 5):
        store.keep([number, 1000, number, 2000 + number, 7])
    assert store.follow([0, 1000, 0], 4) == ()
    assert store.follow([OUTPUTS, 1000, OUTPUTS], 4) == (2000 + OUTPUTS, 7)
    grams = sum(
        len(set(zip(*(output[i : len(output) - KEPT_GRAM + i] for i in range(KEPT_GRAM)), strict=True)))
        for output in store._outputs
    )
    assert len(store._places) <= grams


def request(name, prompt, tenant="", **params):
    made = Request(name, tuple(prompt), SamplingParams(**{"max_tokens": 50} | params), tenant=tenant, eos_ids=(0,))
    made.max_total = 10_000
    return made


class Session:
    """So many seconds a step, and a row."""

    def __init__(self, plain=1.0, row=0.0):
        self.given = plain, row

    def pace(self, rows):
        return self.given


def step(drafter, asked, tokens, sampled, *, start=None, drafts=0, accepted=0, session=None):
    """One row of the request, then what is proposed."""
    start = asked.num_tokens - len(tokens) if start is None else start
    row = Row(asked.id, 0, start, tuple(tokens) + (5,) * drafts, 0, True, drafts)
    result = RowResult(tuple(sampled), accepted=tuple(range(len(tokens), len(tokens) + accepted)))
    seen = [DraftRow(asked, row, 0, result)]
    session = session or Session()
    drafter.extend(session, seen)
    proposals = drafter.propose(session, seen) if sampled else []
    asked.output_ids += sampled
    return proposals[0] if proposals else None


def test_a_prompt_is_taken_in_as_it_is_computed_and_a_cached_one_in_pieces():
    drafter = TextDrafter(NgramShelf(), adaptive=False)
    prompt = [*range(10, 40), *range(10, 14)]
    asked = request("a", prompt)
    assert step(drafter, asked, prompt[:20], [], start=0) is None
    assert step(drafter, asked, prompt[20:], [14], start=20).token_ids == tuple(range(15, 23))
    long = request("b", [*range(TAKEN + 100), 3, 4, 5])
    assert step(drafter, long, [5], [6], start=TAKEN + 102).token_ids == (), "most of it is still to be taken in"
    assert step(drafter, long, [6], [7]).token_ids == tuple(range(8, 16))


def test_outputs_serve_their_own_tenant_and_the_end_proposes_nothing():
    drafter = TextDrafter(SuffixShelf(), adaptive=False)
    first = request("a", [1, 2], tenant="x")
    step(drafter, first, [1, 2], [11, 12, 13, 14, 15, 16], start=0)
    drafter.forget("a")
    for tenant, expected in (("x", (14, 15, 16)), ("y", ())):
        other = request(f"b{tenant}", [50, 51], tenant=tenant)
        assert step(drafter, other, [50, 51], [11, 12, 13], start=0).token_ids == expected
    ended = request("c", [11, 12, 13], tenant="x")
    assert step(drafter, ended, [11, 12, 13], [0], start=0).token_ids == ()
    shelf = SuffixShelf()
    for number in range(TENANTS + 3):
        shelf.open(request("t", [1], tenant=str(number)))
    assert len(shelf._stores) == TENANTS


def test_drafts_stop_where_rows_cost_more_than_they_bring():
    worth = Worth(8)
    assert worth.count("a", 1, Session(1.0, 0.02)) == 8
    assert worth.count("a", 32, Session(1.0, 0.031)) == 0, "32 rows that already pay for themselves"
    between = worth.count("a", 1, Session(1.0, 0.4))
    assert 0 < between < 8
    for _ in range(6):
        worth.hear("a", 4, 0)
    assert worth.count("a", 1, Session(1.0, 0.2)) == 0
    for _ in range(600):
        worth.hear("a", 0, 0)
    assert worth.count("a", 1, Session(1.0, 0.2)) > 0, "it is tried again after a while"
    for _ in range(10):
        worth.hear("a", 8, 8)
    assert worth.count("a", 1, Session(1.0, 0.6)) == 8
    assert Worth(5, adaptive=False).count("a", 64, Session(1.0, 9.0)) == 5
    assert worth.count("a", 1, Session(0.0, 0.0)) == 8, "nothing is known yet"


def test_a_longer_end_that_stood_before_is_believed_more():
    """And what comes of short ones takes nothing from long ones."""
    drafter, session = TextDrafter(SuffixShelf()), Session(1.0, 0.5)
    prompt = [*range(100, 120), 7, 8, *range(200, 210), *range(100, 110)]
    asked = request("a", prompt)
    long = step(drafter, asked, prompt, [110], start=0, session=session)
    assert len(long.token_ids) >= 5 and long.token_ids[0] == 111
    other = request("b", [*prompt, 7])
    short = step(drafter, other, other.prompt_ids, [8], start=0, session=session)
    assert 0 < len(short.token_ids) < len(long.token_ids)
    for _ in range(8):
        assert step(drafter, other, [8], [7, 8], drafts=1, session=session) is not None
    assert step(drafter, asked, [110], [111], drafts=5, accepted=5, session=session).token_ids[0] == 112


def test_while_no_draft_is_worth_its_row_nothing_is_looked_up():
    """And all of it is there when drafts pay again, a step later."""
    drafter, full, alone = TextDrafter(SuffixShelf()), Session(1.0, 1.0), Session(1.0, 0.02)
    asked = request("a", [1, 2, 3, 4, 5, 6])
    assert step(drafter, asked, asked.prompt_ids, [1], start=0, session=full).token_ids == ()
    for token in (2, 3, 4):
        assert step(drafter, asked, [token - 1], [token], session=full).token_ids == ()
    _, lookup, taken = drafter._open["a"]
    assert taken == 7 and lookup.length == 0
    assert step(drafter, asked, [4], [5], session=alone).token_ids == ()
    assert step(drafter, asked, [5], [6], session=alone).token_ids[:3] == (1, 2, 3)


def test_requests_learn_from_those_before_them():
    alone, shared = Worth(8, first=0.7), Worth(8, first=0.7, shared=True)
    for worth in (alone, shared):
        for number in range(40):
            worth.hear(str(number), 4, 0)
    assert alone.acceptance("new") == pytest.approx(0.7) and shared.acceptance("new") < 0.2
    for number in range(40):
        shared.hear(str(number), 8, 8)
    assert shared.acceptance("new") > 0.8


def test_requests_may_refuse_drafts():
    drafter = TextDrafter(NgramShelf())
    assert drafter.serves(request("a", [1]))
    assert not drafter.serves(request("a", [1], speculate=False))


def test_pace_is_the_line_of_what_was_seen_and_leaves_out_what_was_disturbed():
    pace = Pace()
    assert pace.seconds(4) == (0.0, 0.0)
    for number in range(60):
        rows = 1 + number % 8
        pace.hear(rows, 0.010 + 0.001 * rows)
    seconds, row = pace.seconds(5)
    assert (seconds, row) == (pytest.approx(0.015), pytest.approx(0.001))
    pace.hear(3, 5.0)
    assert pace.seconds(5)[0] == pytest.approx(0.015)
    flat = Pace()
    for _ in range(5):
        flat.hear(1, 0.02)
    assert flat.seconds(1)[0] == pytest.approx(0.02)
    assert 0 < flat.seconds(1)[1] < 0.02


def test_a_lookup_never_proposes_more_than_it_is_asked_for():
    noise = random.Random(3)
    for shelf in (NgramShelf(), SuffixShelf()):
        lookup = shelf.open(SimpleNamespace(tenant="", salt="", output_ids=[]))
        for _ in range(500):
            lookup.add(noise.randrange(3))
            for most in (1, 4):
                assert len(lookup.follow(most)) <= most
