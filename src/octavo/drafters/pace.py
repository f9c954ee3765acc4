"""How long steps take, by their rows: what was seen lately of each number of rows, straight lines between them.

Rows do not cost alike: kernels take them in pairs or fours, and as long as reading weights takes longer than computing
with them, one more may be free. What one number of rows shows of the machine's pace moves that of all others with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

SHARE = 0.15  # of a step of one row that a further row is believed to cost beyond those that were seen
OWN, COMMON = 0.1, 0.1  # how far what is seen moves what is known of its number of rows, and of all
OFF = 2.0  # more than so many times what was expected, or less, is heard as that: a step may have been disturbed
AHEAD = 8  # rows over which the price of one is averaged


class Pace:
    def __init__(self) -> None:
        self._common = 1.0  # seconds that all below are multiples of
        self._known: dict[int, tuple[float, int]] = {}  # rows -> (what a step takes, times it was seen)
        self._rows: list[int] = []  # of them, in order

    def hear(self, rows: int, seconds: float) -> None:
        own, times = self._known.get(rows, (0.0, 0))
        if not times:
            if not self._known:
                self._common = seconds
            insort(self._rows, rows)
            self._known[rows] = seconds / self._common, 1
            return
        off = min(max(seconds / (own * self._common), 1 / OFF), OFF) - 1
        self._known[rows] = own * (1 + max(OWN, 1 / (times + 1)) * off), times + 1
        self._common *= 1 + COMMON * off

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 while nothing was seen."""
        known, seen = self._known, self._rows
        if not seen:
            return 0.0
        place = bisect_left(seen, rows)
        if place < len(seen) and seen[place] == rows:
            return known[rows][0] * self._common
        if 0 < place < len(seen):
            low, high = seen[place - 1], seen[place]
            share = (rows - low) / (high - low)
            return (known[low][0] * (1 - share) + known[high][0] * share) * self._common
        near = seen[0] if place == 0 else seen[-1]
        step = known[near][0]
        slope = SHARE * step / (near * SHARE + 1 - SHARE)
        if place:
            slope = max(slope, (step - known[seen[0]][0]) / max(near - seen[0], 1))
        return max(step + slope * (rows - near), 0.1 * step) * self._common


def further(rows: int, seconds: Callable[[int], float]) -> float:
    """Of one row more than so many, at the best number of further ones. seconds: of a step of so many rows."""
    plain = seconds(rows)
    return max(min((seconds(rows + more) - plain) / more for more in range(1, AHEAD + 1)), 0.0)
