"""What further rows cost is what was timed, and as many drafts are worth theirs as make the most tokens a second."""

import pytest

from octavo.runner.further import Further


def test_between_what_was_timed_lies_a_line():
    found = Further(2, (1.0, 1.2, 2.0))
    assert [found.step(rows) for rows in range(2, 7)] == pytest.approx([1.0, 1.1, 1.2, 1.6, 2.0])


def test_drafts_are_worth_what_they_were_timed_at():
    assert Further(2, (1.0, 1.2, 2.0)).worth(0.5) == pytest.approx((1, 1.5 / 1.2))
    assert Further(1, (1.0, 1.02, 1.33)).worth(0.9) == pytest.approx((2, 2.71 / 1.33))
    assert Further(1, (1.0, 2.0, 3.0)).worth(0.9) == (0, 1.0)
