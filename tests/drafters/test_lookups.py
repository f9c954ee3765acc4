"""What lookups find, beside a search by hand; how many drafts are worth their rows; how long steps take."""

import random
from types import SimpleNamespace

import pytest

from octavo.drafters import text
from octavo.drafters.belief import ASTRAY, Beliefs
from octavo.drafters.belief import LONGEST as LONGEST_END
from octavo.drafters.ngram import LONGEST, Ngrams, NgramShelf
from octavo.drafters.pace import Pace, further
from octavo.drafters.port import DraftRow, Proposal
from octavo.drafters.recall import PLACES, Recall
from octavo.drafters.suffix import KEPT_GRAM, OUTPUTS, TENANTS, Automaton, Store, SuffixShelf
from octavo.drafters.text import TAKEN, TextDrafter
from octavo.drafters.worth import Worth, worthwhile
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
    assert lookup.guesses() == ((4, 5),), "four agree at the beginning, two later"
    assert lookup.follow(0, 3) == [5, 9, 3]
    lookup.add(8)
    assert lookup.guesses() == ()
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
    """So many seconds a step of one row, and a row more."""

    def __init__(self, plain=1.0, row=0.0):
        self.given = plain, row

    def seconds(self, rows):
        plain, row = self.given
        return plain + row * (rows - 1) if plain else 0.0


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


def line(plain, row):
    return Session(plain, row).seconds


def test_drafts_are_as_many_as_make_the_most_tokens_a_second():
    surely = [0.9**draft for draft in range(1, 9)]
    assert worthwhile([surely], 1, line(1.0, 0.02))[0] == [8]
    assert worthwhile([surely], 1, line(1.0, 0.45))[0] == [3]
    assert worthwhile([[0.4**draft for draft in range(1, 9)]], 1, line(1.0, 0.45))[0] == [0]
    assert worthwhile([[]], 1, line(1.0, 0.0)) == ([0], 1.0)
    pairs = [1.0, 1.02, 1.4, 1.42, 1.8, 1.82]
    counts, gain = worthwhile([[0.5, 0.25, 0.125]], 1, lambda rows: pairs[rows - 1])
    assert counts == [1] and gain == pytest.approx(1.5 / 1.02), "the second row of a pair is nearly free"
    counts, _ = worthwhile([[0.9, 0.8, 0.7]], 1, lambda rows: pairs[rows - 1])
    assert counts == [3], "and so is the fourth"
    counts, gain = worthwhile([[0.9, 0.3], [0.5, 0.45], [0.1]], 3, lambda rows: 1.0 if rows <= 6 else 9.0)
    assert counts == [1, 2, 0] and gain == pytest.approx((3 + 0.9 + 0.5 + 0.45) / 3), "the likeliest of all"


def test_a_drafter_that_runs_for_each_draft_proposes_what_its_runs_are_worth():
    worth, runs = Worth(8), Pace()
    assert worth.chain(["a"], 1, Session(), runs) == [3] and not worth.hopeless(1, Session(), runs), "not known yet"
    runs.hear(1, 0.05)
    assert worth.chain(["a"], 1, Session(1.0, 0.02), runs)[0] > 3
    assert worth.chain(["a"], 1, Session(1.0, 0.02), runs, made=8) == [8]
    for _ in range(6):
        worth.hear("a", 4, 0)
    assert worth.chain(["a", "b"], 2, Session(1.0, 0.2), runs)[0] == 0
    for _ in range(600):
        worth.hear("a", 0, 0)
    assert worth.chain(["a"], 1, Session(1.0, 0.1), runs)[0] > 0, "it is tried again after a while"
    slow = Pace()
    slow.hear(1, 3.0)
    assert worth.hopeless(1, Session(1.0, 0.0), slow) and not worth.hopeless(1, Session(1.0, 0.0), runs)
    assert worth.hopeless(1, Session(1.0, 1.0), runs), "rows that cost a step each"
    assert Worth(5, adaptive=False).chain(["a"], 64, Session(1.0, 9.0), slow) == [5]
    worth.forget("a")
    assert worth.acceptance("a") == 0.75


def test_a_longer_end_that_stood_before_is_believed_more():
    drafter, session = TextDrafter(SuffixShelf(Recall)), Session(1.0, 0.3)
    prompt = [*range(100, 120), 7, 8, *range(200, 210), *range(100, 112)]
    asked = request("a", prompt)
    long = step(drafter, asked, prompt, [112], start=0, session=session)
    assert len(long.token_ids) >= 5 and long.token_ids[0] == 113
    other = request("b", [*prompt, 7])
    short = step(drafter, other, other.prompt_ids, [8], start=0, session=session)
    assert len(short.token_ids) < len(long.token_ids)


def test_what_lookups_are_worth_is_learnt_without_a_draft():
    """Rows are so dear that nothing is proposed, and all the while it is seen what would have come true."""
    drafter, dear, cheap = TextDrafter(SuffixShelf(Recall)), Session(1.0, 0.96), Session(1.0, 0.45)
    cycle = [11, 12, 13, 14, 15]
    asked = request("a", cycle)
    assert step(drafter, asked, cycle, [11], start=0, session=cheap).token_ids == ()
    for place in range(1, 40):
        found = step(drafter, asked, [cycle[(place - 1) % 5]], [cycle[place % 5]], session=dear)
        assert found.token_ids == ()
    drafter._terms = {}
    found = step(drafter, asked, [cycle[39 % 5]], [cycle[40 % 5]], session=cheap)
    assert found.token_ids[:3] == (12, 13, 14)
    drafter.forget("a")
    fresh = request("b", [*range(30, 47), 9, *range(30, 47)], tenant="other")
    assert step(drafter, fresh, fresh.prompt_ids, [9], start=0, session=cheap).token_ids, "others are believed like it"


def test_while_no_draft_is_worth_its_row_nothing_is_looked_up():
    """And all of it is there when drafts pay again."""
    drafter, full, alone = TextDrafter(SuffixShelf(Recall)), Session(1.0, 1.0), Session(1.0, 0.02)
    asked = request("a", [1, 2, 3, 4, 5, 6])
    assert step(drafter, asked, asked.prompt_ids, [1], start=0, session=full).token_ids == ()
    assert drafter.follow(full, [asked], [(2,)]) == ()
    for token in (2, 3, 4):
        assert step(drafter, asked, [token - 1], [token], session=full).token_ids == ()
    assert drafter._open["a"].taken == 0
    drafter._terms = {}
    assert step(drafter, asked, [4], [5], session=alone).token_ids[:3] == (6, 1, 2)
    assert drafter._open["a"].taken == 11


def test_a_copy_goes_on_behind_what_was_changed_in_it():
    """Where no pair of tokens stood before: behind a changed token, or after the last place of the last token."""
    recall = Recall(Store())
    for token in [1, 2, 3, 4, 5, 6, 7, 90, 1, 2, 3]:
        recall.add(token)
    assert recall.guesses() == ((3, 4),) and recall.follow(0, 2) == [4, 5]
    recall.add(50)  # instead of 4
    assert recall.guesses() == [(ASTRAY, 5)] and recall.follow(0, 3) == [5, 6, 7]
    recall.add(5)
    assert recall.guesses() == [(ASTRAY, 6), (1, 6)] and recall.follow(1, 2) == [6, 7]
    recall.add(60)
    recall.add(61)
    assert recall.guesses() == [], "two changed tokens are no copy"


def test_of_two_guesses_the_one_is_proposed_that_came_true_before():
    drafter, session = TextDrafter(SuffixShelf(Recall)), Session(1.0, 0.05)
    prompt = [7, 1, 9, 7, 2, 9, 7, 3, 9, 7, 4, 9, 7]
    asked = request("a", [*prompt, 5])
    kind = drafter._beliefs.open(asked)
    for _ in range(30):
        kind.hear(1, True)
        kind.hear(ASTRAY, False)
    asked = request("b", [1, 2, 3, 4, 5, 1, 2])
    step(drafter, asked, asked.prompt_ids, [3], start=0, session=session)
    drafts = step(drafter, asked, [3], [1], session=session).token_ids
    assert drafts[0] == 2, "after the last place of 1, not 5 behind the changed 4"


def test_steps_are_followed_as_rows_are(monkeypatch):
    """The same proposals, whichever way the drafter is told; what it has not seen yet it wants to be shown."""
    noise = random.Random(5)
    told, shown = (TextDrafter(SuffixShelf(Recall)) for _ in range(2))
    session, proposed = Session(1.0, 0.2), 0
    monkeypatch.setattr(text, "LOOK", -1.0)
    prompt = [noise.randrange(6) for _ in range(30)]
    one, other = request("a", prompt), request("a", prompt)
    assert told.follow(session, [one], [(3,)]) is None
    step(told, one, prompt, [3], start=0, session=session)
    step(shown, other, prompt, [3], start=0, session=session)
    for _ in range(60):
        token, last = noise.randrange(6), one.output_ids[-1]
        found = told.follow(session, [one], [(token,)])
        one.output_ids.append(token)
        expected = step(shown, other, [last], [token], session=session)
        assert (found[0] if found else Proposal()) == expected
        proposed += len(expected.token_ids)
    assert proposed > 10
    ended = told.follow(session, [one], [(0,)])
    assert not ended or not ended[0].token_ids, "nothing follows the end"


def test_where_guesses_bring_nothing_they_are_made_rarely():
    """Until a new request comes; and what was passed over is taken in all the same."""
    drafter, session = TextDrafter(SuffixShelf(Recall)), Session(1.0, 0.2)
    asked = request("a", [1, 2, 3])
    step(drafter, asked, asked.prompt_ids, [50], start=0, session=session)
    taken = []
    for token in range(51, 120):
        assert drafter.follow(session, [asked], [(token,)]) == ()
        asked.output_ids.append(token)
        taken.append(drafter._open["a"].taken == asked.num_tokens)
    assert all(taken[:5]) and sum(taken[-16:]) == 2, "every eighth token in the end"
    other = request("b", [7, 8, 9])
    step(drafter, other, other.prompt_ids, [60], start=0, session=session)
    drafter.follow(session, [asked, other], [(120,), (61,)])
    assert drafter._open["a"].taken == asked.num_tokens + 1
    for token in [50, *range(51, 60)] * 2:
        drafter.follow(session, [asked], [(token,)])
        asked.output_ids.append(token)
    found = drafter.follow(session, [asked], [(60,)])
    assert found and found[0].token_ids[0] == 61, "a copy was seen in time"


def test_requests_learn_from_those_before_them_and_of_their_kind():
    beliefs = Beliefs()
    greedy, sampled = (request(name, [1], temperature=heat) for name, heat in (("a", 0.0), ("b", 0.8)))
    first = beliefs.open(greedy).chance(4)
    for _ in range(20):
        old = beliefs.open(greedy)
        for _ in range(10):
            old.hear(5, True)
            old.hear(0, False)
    new, other = beliefs.open(greedy), beliefs.open(sampled)
    assert new.chance(4) > 0.9 and new.chance(0) < 0.1 and new.chance(LONGEST_END) == 0.9
    assert other.chance(4) == first, "sampled outputs repeat themselves less than greedy ones"
    for _ in range(10):
        new.hear(4, False)
    assert new.chance(4) < 0.4 < beliefs.open(greedy).chance(4), "its own text says more"
    path = other.path(3, 4)
    assert path == pytest.approx([0.4, 0.4 * 0.5, 0.4 * 0.5 * 0.5, 0.4 * 0.5 * 0.5 * 0.65])
    assert other.path(0, 2) == pytest.approx([0.3, 0.09]), "of others' texts nothing is known to agree further"


@pytest.mark.parametrize("letters", [2, 4, 30])
def test_recall_finds_the_latest_of_the_longest_ends(letters):
    """Beside a search by hand, where the places that it compares are enough."""
    for seed in range(20):
        noise = random.Random(seed)
        recall, tokens = Recall(Store()), []
        for _ in range(40):
            token = noise.randrange(letters)
            recall.add(token)
            tokens.append(token)
            guesses = recall.guesses()
            length, places = longest_before(tokens)
            pairs = [at for at in range(2, len(tokens)) if tokens[at - 2 : at] == tokens[-2:]]
            if 2 <= length <= LONGEST_END and len(pairs) <= PLACES:
                assert guesses == ((length, tokens[max(places)]),)
                assert recall.follow(0, 4) == tokens[max(places) : max(places) + 4]
            elif length < 2:
                assert all(agreed in (ASTRAY, 1) for agreed, _ in guesses)


def test_requests_may_refuse_drafts():
    drafter = TextDrafter(NgramShelf())
    assert drafter.serves(request("a", [1]))
    assert not drafter.serves(request("a", [1], speculate=False))


def test_pace_knows_each_number_of_rows_and_draws_lines_between():
    pace, truth = Pace(), {1: 3.0, 2: 3.1, 3: 4.0, 4: 4.1, 9: 7.5}
    assert pace.seconds(4) == 0.0
    pace.hear(1, 3.0)
    assert pace.seconds(1) == 3.0 and pace.seconds(2) == pytest.approx(3.45), "what was not seen costs something"
    for _ in range(30):
        for rows, seconds in truth.items():
            pace.hear(rows, seconds)
    for rows, seconds in truth.items():
        assert pace.seconds(rows) == pytest.approx(seconds, rel=0.03)
    assert pace.seconds(6) == pytest.approx(4.1 + 3.4 * 2 / 5, rel=0.03)
    assert pace.seconds(13) == pytest.approx(7.5 + 4 * 4.5 / 8, rel=0.03)
    assert further(1, pace.seconds) == pytest.approx(0.1, rel=0.2), "the second row is nearly free"
    assert further(2, pace.seconds) == pytest.approx(0.5, rel=0.2), "the best pair"


def test_rows_that_seemed_dear_are_believed_to_be_cheaper_again_after_a_while():
    """Or nobody would try them again: the one step of two rows that was seen may have been disturbed."""
    pace = Pace()
    for _ in range(5):
        pace.hear(1, 1.0)
    pace.hear(2, 50.0)
    assert 1.15 < pace.seconds(2) <= 2.3
    for _ in range(400):
        pace.hear(1, 1.0)
    assert pace.seconds(2) == pytest.approx(1.15, rel=0.1)
    for _ in range(20):
        pace.hear(2, 1.9)
    assert pace.seconds(2) > 1.7, "until they are seen to be dear"
    cheap = Pace()
    for rows, seconds in ((1, 1.0), (2, 1.01)):
        cheap.hear(rows, seconds)
    for _ in range(400):
        cheap.hear(1, 1.0)
    assert cheap.seconds(2) == pytest.approx(1.01, rel=0.01), "what is cheap stays so"


def test_pace_follows_the_machine_and_one_slow_step_moves_it_little():
    pace = Pace()
    for _ in range(40):
        pace.hear(1, 1.0)
        pace.hear(5, 2.0)
    pace.hear(5, 500.0)
    assert pace.seconds(5) < 2.5 and pace.seconds(1) < 1.15
    for _ in range(60):
        pace.hear(1, 3.0)
    assert pace.seconds(1) == pytest.approx(3.0, rel=0.02)
    assert 3.5 < pace.seconds(5) < 6.5, "what one number of rows shows moves the others too"


def test_a_lookup_never_proposes_more_than_it_is_asked_for():
    noise = random.Random(3)
    for shelf in (NgramShelf(), SuffixShelf(), SuffixShelf(Recall)):
        lookup = shelf.open(SimpleNamespace(tenant="", salt="", output_ids=[]))
        for _ in range(500):
            lookup.add(noise.randrange(3))
            for most in (1, 4):
                for place, (_, token) in enumerate(lookup.guesses()):
                    followed = lookup.follow(place, most)
                    assert len(followed) <= most and followed[0] == token
