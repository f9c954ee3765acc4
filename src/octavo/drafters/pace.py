"""How long steps of decodes take, by their rows: a line through what was seen lately."""

from __future__ import annotations

KEPT = 0.97  # of the weight of what was seen, a step later
SHARE = 0.15  # of a step of one row that a further row is believed to cost, before any was seen


class Pace:
    """Weighted sums of (rows, seconds) of the latest steps."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def hear(self, rows: int, seconds: float) -> None:
        """A step of four times what was expected was disturbed, and is not heard; what is known fades all the same."""
        disturbed = self._weight > 3 and seconds > 4 * self.seconds(rows)[0]
        for name in ("_weight", "_rows", "_seconds", "_squares", "_products"):
            setattr(self, name, KEPT * getattr(self, name))
        if not disturbed:
            self._weight += 1
            self._rows += rows
            self._seconds += seconds
            self._squares += rows * rows
            self._products += rows * seconds

    def seconds(self, rows: int) -> tuple[float, float]:
        """(seconds of a step of so many rows, of one row more); zeros while nothing was seen."""
        if self._weight < 1:
            return 0.0, 0.0
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_rows**2
        if spread > 0.05:
            slope = (self._products / self._weight - mean_rows * mean) / spread
        else:
            slope = SHARE * mean / max(1.0, mean_rows * SHARE + 1 - SHARE)
        slope = max(slope, 0.0)
        return max(mean + slope * (rows - mean_rows), 0.1 * mean), slope
