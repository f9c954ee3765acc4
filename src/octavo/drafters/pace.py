"""How long steps take, by their rows: what was seen lately of each number of rows, straight lines between them.

Rows do not cost alike: kernels take them in pairs or fours, and as long as reading weights takes longer than computing
with them, one more may be free. What one number of rows shows of the machine's pace moves that of all others with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

SHARE = 0.15  # of a step of one row that a further row is believed to cost beyond those that were seen
OWN, COMMON = 0.1, 0.1  # how far what is seen moves what is known of its number of rows, and of all
OFF = 2.0  # more than so many times what was expected, or less, is heard as that: a step may have been disturbed
ENOUGH = 4  # times
HALF = 100  # steps heard after which what was seen is believed half
AHEAD = 8  # rows over which the price of one is averaged


@dataclass(slots=True)
class Known:
    """Of one number of rows. step: what it takes, in common seconds. heard: when last, as a count of all."""

    step: float
    times: int
    heard: int


class Pace:
    def __init__(self) -> None:
        self._common = 1.0  # seconds that all below are multiples of
        self._known: dict[int, Known] = {}
        self._rows: list[int] = []  # of them, in order
        self._heard = 0

    def hear(self, rows: int, seconds: float) -> None:
        """The first of its number of rows may be a disturbed one too."""
        self._heard += 1
        known = self._known.get(rows)
        expected = self.seconds(rows)
        off = min(max(seconds / expected, 1 / OFF), OFF) if expected else 1.0
        if known is None:
            if not self._known:
                self._common = seconds
            insort(self._rows, rows)
            self._known[rows] = Known(off * (expected or seconds) / self._common, 1, self._heard)
            return
        known.step *= 1 + max(OWN, 1 / (known.times + 1)) * (off - 1)
        known.times += 1
        known.heard = self._heard
        self._common *= 1 + COMMON * (off - 1)

    def knows(self, rows: int) -> bool:
        """Whether a step of so many rows was seen often enough to say what one takes."""
        return rows in self._known and self._known[rows].times >= ENOUGH

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 while nothing was seen."""
        seen = self._rows
        if not seen:
            return 0.0
        place = bisect_left(seen, rows)
        if place < len(seen) and seen[place] == rows:
            return self._at(place) * self._common
        if 0 < place < len(seen):
            low, high = seen[place - 1], seen[place]
            share = (rows - low) / (high - low)
            return (self._at(place - 1) * (1 - share) + self._at(place) * share) * self._common
        near = max(place - 1, 0)
        step = self._at(near)
        slope = _slope(seen[near], step)
        if place:
            slope = max(slope, (step - self._at(0)) / max(seen[near] - seen[0], 1))
        return max(step + slope * (rows - seen[near]), 0.1 * step) * self._common

    def _at(self, place: int) -> float:
        """What was seen last of many rows is believed less, the longer ago it was and the less often: as far as it says
        that they are dear, for then they are not tried again."""
        known = self._known[self._rows[place]]
        if not place or known.heard == self._heard:
            return known.step
        below = self._known[self._rows[place - 1]].step
        cheap = below + _slope(self._rows[place - 1], below) * (self._rows[place] - self._rows[place - 1])
        if known.step <= cheap:
            return known.step
        sure = known.times / (known.times + 1) * 0.5 ** ((self._heard - known.heard) / HALF)
        return cheap + sure * (known.step - cheap)


def _slope(rows: int, step: float) -> float:
    """What a row is believed to cost beyond so many."""
    return SHARE * step / (rows * SHARE + 1 - SHARE)


def further(rows: int, seconds: Callable[[int], float]) -> float:
    """Of one row more than so many, at the best number of further ones. seconds: of a step of so many rows."""
    plain = seconds(rows)
    return max(min((seconds(rows + more) - plain) / more for more in range(1, AHEAD + 1)), 0.0)
