"""What a sampled row does to its request: the rules of stopping by token, moves in a tree, drafts taken over."""

import pytest

from octavo.errors import EngineError
from octavo.policy.outcome import append_output, moves, take_drafts
from octavo.request import Row, RowResult
from policy.machine import request


def asker(total=10, **fields):
    """Three prompt tokens; 0 is end-of-text, 9 a stop id."""
    each = request("a", 3, stop_token_ids=(9,), ignore_eos=False, **fields)
    each.max_total = total
    return each


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        ((1, 2, 3, 4), (None, None, (1, 2, 3, 4))),
        ((1, 0, 3, 4), ("stop", None, (1, 0))),
        ((1, 9, 3, 4), ("stop", 9, (1, 9))),
        ((0, 9), ("stop", None, (0,))),
        ((1, 2, 3, 4, 5, 6, 7), ("length", None, (1, 2, 3, 4, 5, 6, 7))),
        ((1, 2, 3, 4, 5, 6, 7, 8), ("length", None, (1, 2, 3, 4, 5, 6, 7))),
        ((1, 2, 3, 4, 5, 6, 0, 8), ("stop", None, (1, 2, 3, 4, 5, 6, 0))),
        ((1, 2, 3, 4, 5, 6, 9), ("stop", 9, (1, 2, 3, 4, 5, 6, 9))),
    ],
)
def test_output_ends_at_the_first_token_that_ends_it(tokens, end):
    each = asker()
    assert append_output(each, tokens) == end and tuple(each.output_ids) == end[2]


def test_output_before_counts():
    each = asker(total=5)
    assert append_output(each, (1,))[0] is None
    assert append_output(each, (2, 3)) == ("length", None, (2,)) and each.output_ids == [1, 2]


@pytest.mark.parametrize(("least", "kept"), [(0, 2), (2, 2), (3, 4), (4, 4)])
def test_stops_count_from_min_tokens_on(least, kept):
    each = asker(min_tokens=least)
    assert append_output(each, (1, 0, 2, 9, 3))[2] == (1, 0, 2, 9, 3)[:kept]


def row(known, drafts, start=20):
    return Row("a", 0, start, tuple(range(known + drafts)), known - 1, True, drafts)


@pytest.mark.parametrize(
    ("accepted", "moved"),
    [((), []), ((2, 3), []), ((3,), [(23, 22)]), ((2, 4), [(24, 23)]), ((3, 5), [(23, 22), (25, 23)])],
)
def test_accepted_tokens_move_to_where_plain_decoding_would_write(accepted, moved):
    assert moves(row(2, 4), accepted) == moved


def test_drafts_and_parents_are_taken_over():
    each = asker()
    take_drafts(each, RowResult((1,), draft_ids=(4, 5, 6), draft_parents=(-1, -1, 1)))
    assert (each.draft_ids, each.draft_parents) == ((4, 5, 6), (-1, -1, 1))
    take_drafts(each, RowResult((1,), draft_ids=(4, 5), draft_parents=(-1, 0)))
    assert (each.draft_ids, each.draft_parents) == ((4, 5), ())
    with pytest.raises(EngineError, match="do not fit 2 drafts"):
        take_drafts(each, RowResult((1,), draft_ids=(4, 5), draft_parents=(-1, 0, 1)))
