"""How many drafts are worth their rows: as long as the tokens that they promise cost less than a plain step gives.

A step of B rows gives B tokens; one row more costs what the machine's pace says. The i-th draft of a request comes true
with the chance a^i, a being its acceptance so far. Time enters here alone, and never into what is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.drafters.pace import Pace
from octavo.drafters.port import DraftSession

FIRST_HITS, FIRST_TRIES = 1.5, 2.0  # what a request is believed before it was seen
KEPT, FADED = 0.85, 0.99  # of what was seen: at each verified step, at each step without drafts
SHARED_TRIES, SHARED_KEPT = 8.0, 0.98  # the same of all requests together
CAUTION = 1.15  # a draft is to bring so much more than it costs
PACE_GAIN = 1.03  # and drafts that are run to be so much faster than a step without
FIRST_COUNT = 3  # drafts while no pace is known


class Worth:
    """most: drafts of a row. adaptive: False proposes as many as there are, whatever they cost. first: the acceptance
    that a request is believed to have before it was seen; shared: what it is learnt from requests before it too."""

    def __init__(
        self, most: int, *, adaptive: bool = True, first: float = FIRST_HITS / FIRST_TRIES, shared: bool = False
    ) -> None:
        self._most = most
        self._adaptive = adaptive
        self._first = first * FIRST_TRIES
        self._shared = shared
        self._all = first * SHARED_TRIES, SHARED_TRIES  # hits and tries of all requests, the latest most
        self._seen: dict[str, tuple[float, float]] = {}

    def hear(self, request_id: str, drafts: int, accepted: int) -> None:
        """What became of the drafts of a row."""
        hits, tries = self._seen.get(request_id, (self._first, FIRST_TRIES))
        if drafts:
            tried = accepted + (accepted < drafts)
            self._seen[request_id] = KEPT * hits + accepted, KEPT * tries + tried
            if self._shared:
                self._all = SHARED_KEPT * self._all[0] + accepted, SHARED_KEPT * self._all[1] + tried
                self._first = FIRST_TRIES * self._all[0] / self._all[1]
        else:
            self._seen[request_id] = (
                FADED * hits + (1 - FADED) * self._first,
                FADED * tries + (1 - FADED) * FIRST_TRIES,
            )

    def acceptance(self, request_id: str) -> float:
        hits, tries = self._seen.get(request_id, (self._first, FIRST_TRIES))
        return min(hits / tries, 0.99) if tries > 0 else 0.0

    def price(self, rows: int, session: DraftSession) -> float:
        """Chance that a draft must have in a step of `rows` requests; 0 while no pace is known."""
        plain, row = session.pace(rows) if self._adaptive else (0.0, 0.0)
        return CAUTION * row * rows / plain if plain > 0 else 0.0

    def count(self, request_id: str, rows: int, session: DraftSession) -> int:
        """How many drafts to give a request in a step of `rows` requests."""
        if not self._adaptive:
            return self._most
        price = self.price(rows, session)
        chance = acceptance = self.acceptance(request_id)
        count = 0
        while count < self._most and chance > price:
            count += 1
            chance *= acceptance
        return count

    def hopeless(self, rows: int, session: DraftSession, runs: Pace) -> bool:
        """Whether drafts that all came true would not pay: then nobody needs to be asked. As `chain` counts."""
        seconds, row = session.pace(rows)
        run = runs.seconds(rows)[0]
        if not self._adaptive or seconds <= 0 or run <= 0:
            return False
        most = (1 + self._most) / (seconds + self._most * (row * rows + run))
        return max(most, 2 / (seconds + row * rows + run)) < PACE_GAIN / seconds

    def chain(self, names: Sequence[str], rows: int, session: DraftSession, runs: Pace, *, made: int = 0) -> list[int]:
        """How many drafts to give each of `names` in a step of `rows` requests, where the i-th of them all together
        are a run of the drafter: as many as make the most tokens a second. runs: what its runs take. made: drafts whose
        runs are made in any case."""
        if not self._adaptive:
            return [self._most] * len(names)
        seconds, row = session.pace(rows)
        if seconds <= 0 or not names or runs.seconds(1)[0] <= 0:
            return [FIRST_COUNT] * len(names)
        tokens: float = rows
        best, kept, counts = PACE_GAIN * tokens / seconds, [0] * len(names), [0] * len(names)
        acceptance = [self.acceptance(name) for name in names]
        chances, live = list(acceptance), list(range(len(names)))
        for count in range(1, self._most + 1):
            run, more = runs.seconds(len(live)) if count > made else (0.0, 0.0)
            price = (row + more) * tokens / seconds
            live = [place for place in live if chances[place] > price]
            if not live:
                break
            seconds += row * len(live) + run
            for place in live:
                tokens += chances[place]
                counts[place] = count
                chances[place] *= acceptance[place]
            if tokens / seconds > best:
                best, kept = tokens / seconds, list(counts)
        return kept

    def forget(self, request_id: str) -> None:
        self._seen.pop(request_id, None)
