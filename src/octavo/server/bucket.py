"""What may be spent in a minute: filled evenly, saved up for a minute at most."""

from __future__ import annotations

import math
from collections.abc import Callable


class Bucket:
    """clock: seconds, any origin. More may be taken than is there; then it is filled for longer."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._held = float(per_minute)
        self._looked = clock()

    def take(self, amount: float) -> None:
        self._fill()
        self._held -= amount

    def wait(self, amount: float) -> int:
        """Seconds, whole, until it holds so much; 0 where it does."""
        self._fill()
        missing = min(amount, self.per_minute) - self._held
        return math.ceil(missing / self.per_minute * 60) if missing > 0 else 0

    def _fill(self) -> None:
        now = self._clock()
        self._held = min(self._held + (now - self._looked) / 60 * self.per_minute, float(self.per_minute))
        self._looked = now
