"""The limit of reasoning: counted from its opening mark, closed when it is spent, whatever spells the marks."""

import pytest

from octavo.grammar.thoughts import ThoughtLimit
from octavo.request import Thinking

OPEN, CLOSE = 1000, 1001  # special tokens; all others are characters


def spell(token):
    return {OPEN: b"<think>", CLOSE: b"</think>"}.get(token) or bytes([token])


def limit(budget, *, opened=False, closing=(10, CLOSE, 10), again=()):
    return ThoughtLimit(Thinking(budget, "<think>", "</think>", closing, again or closing, opened), spell)


def run(limit, wanted, length=60):
    """What comes of tokens that a model would say."""
    said = []
    for token in [*wanted, *[ord("x")] * length][:length]:
        forced = limit.forced()
        said.append(token if forced is None else forced)
        limit.accept(said[-1:])
    return said


def ids(text):
    return list(text.encode())


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_mark_comes_when_the_budget_is_spent(budget, opened):
    said = run(limit(budget, opened=opened), [] if opened else [*ids("ab"), OPEN])
    assert said == [*([] if opened else [*ids("ab"), OPEN]), *ids("x" * budget), 10, CLOSE, 10, *said[-1:] * 60][:60]


def test_what_closes_by_itself_is_left_alone():
    wanted = [OPEN, *ids("so"), CLOSE, *ids("answer")]
    assert run(limit(3), wanted)[: len(wanted)] == wanted


def test_reasoning_that_opens_again_uses_what_is_left():
    wanted = [OPEN, *ids("ab"), CLOSE, *ids("hm"), OPEN]
    said = run(limit(4), wanted)
    assert said[: len(wanted)] == wanted
    assert said[len(wanted) : len(wanted) + 4] == [ord("x"), 10, CLOSE, 10]  # the mark itself was counted


def test_marks_that_are_spelled_are_seen():
    wanted = ids("<think>ab</think>yes")
    assert run(limit(20), wanted)[: len(wanted)] == wanted
    said = run(limit(3, closing=tuple(ids("</think>"))), ids("<think>abcdefgh"))
    assert bytes(said).startswith(b"<think>abc</think>defgh"[:18])


def test_drafts_leave_no_trace():
    one = limit(2, opened=True)
    assert one.forced() is None and one.forced([ord("a"), ord("b")]) == 10
    assert one.forced([ord("a"), ord("b"), 10]) == CLOSE and one.forced() is None
    one.accept([ord("a"), ord("b")])
    assert one.ahead() == (10, CLOSE, 10) and one.forced([10, CLOSE, 10]) is None


def test_what_opens_again_may_be_closed_otherwise():
    """The end of what was forced may begin the next opening mark, as channels do."""
    closing, again = tuple(ids("</think><th")), tuple(ids("</think>END"))
    said = bytes(run(limit(2, opened=True, closing=closing, again=again), ids("ab" + "." * 11 + "ink>"), 40))
    assert said.startswith(b"ab</think><think></think>END")
