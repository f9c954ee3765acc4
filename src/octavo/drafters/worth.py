"""How many drafts are worth their rows: as many as make the most tokens a second, of all requests of a step together.

A step of B rows gives B tokens; what it takes with further rows, the machine's pace says. A draft comes true with the
chance that those before it on its path do, and it after them. Time enters here alone, and never into what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.drafters.pace import Pace, further
from octavo.drafters.port import DraftSession

FIRST_HITS, FIRST_TRIES = 1.5, 2.0  # what a request is believed before it was seen
KEPT, FADED = 0.85, 0.99  # of what was seen: at each verified step, at each step without drafts
CAUTION = 1.15  # a node of a tree is to bring so much more than it costs
PACE_GAIN = 1.03  # and drafts are to make a step so much faster
FIRST_COUNT = 3  # drafts while no pace is known


def worthwhile(
    chances: Sequence[Sequence[float]], rows: int, seconds: Callable[[int], float], *, room: int | None = None
) -> tuple[list[int], float]:
    """(per request how many of its drafts make the most tokens a second together, tokens a second over those without):
    none where that is less than PACE_GAIN. chances: that a draft comes true and all before it on its path, the
    likeliest first. rows: of the step without drafts, which give a token each. seconds: of a step of so many rows.
    room: most drafts of all."""
    ranked = sorted(((chance, name) for name, each in enumerate(chances) for chance in each), reverse=True)[:room]
    plain, tokens, best, gain = seconds(rows), float(rows), 0, PACE_GAIN
    for count, (chance, _) in enumerate(ranked, 1):
        tokens += chance
        now = tokens * plain / (rows * seconds(rows + count))
        if now > gain:
            best, gain = count, now
    counts = [0] * len(chances)
    for _, name in ranked[:best]:
        counts[name] += 1
    return counts, gain if best else 1.0


class Worth:
    """Of drafters that run a program for each draft. most: drafts of a row. adaptive: False proposes as many as there
    are, whatever they cost."""

    def __init__(self, most: int, *, adaptive: bool = True) -> None:
        self._most = most
        self._adaptive = adaptive
        self._seen: dict[str, tuple[float, float]] = {}

    def hear(self, request_id: str, drafts: int, accepted: int) -> None:
        """What became of the drafts of a row."""
        hits, tries = self._seen.get(request_id, (FIRST_HITS, FIRST_TRIES))
        if drafts:
            self._seen[request_id] = KEPT * hits + accepted, KEPT * tries + accepted + (accepted < drafts)
        else:
            self._seen[request_id] = (
                FADED * hits + (1 - FADED) * FIRST_HITS,
                FADED * tries + (1 - FADED) * FIRST_TRIES,
            )

    def acceptance(self, request_id: str) -> float:
        hits, tries = self._seen.get(request_id, (FIRST_HITS, FIRST_TRIES))
        return min(hits / tries, 0.99) if tries > 0 else 0.0

    def hopeless(self, rows: int, session: DraftSession, runs: Pace) -> bool:
        """Whether drafts that all came true would not pay: then nobody needs to be asked. As `chain` counts."""
        plain, run = session.seconds(rows), runs.seconds(rows)
        if not self._adaptive or plain <= 0 or run <= 0:
            return False
        gains = (
            (1 + count) * plain / (session.seconds(rows * (1 + count)) + count * run)
            for count in range(1, self._most + 1)
        )
        return max(gains) < PACE_GAIN

    def chain(self, names: Sequence[str], rows: int, session: DraftSession, runs: Pace, *, made: int = 0) -> list[int]:
        """How many drafts to give each of `names` in a step of `rows` requests, where the i-th of them all together
        are a run of the drafter: as many as make the most tokens a second. runs: what its runs take. made: drafts whose
        runs are made in any case."""
        if not self._adaptive:
            return [self._most] * len(names)
        seconds = session.seconds(rows)
        if seconds <= 0 or not names or runs.seconds(1) <= 0:
            return [FIRST_COUNT] * len(names)
        tokens, total, spent = float(rows), rows, 0.0
        best, kept, counts = PACE_GAIN * tokens / seconds, [0] * len(names), [0] * len(names)
        acceptance = [self.acceptance(name) for name in names]
        chances, live = list(acceptance), list(range(len(names)))
        for count in range(1, self._most + 1):
            run, more = (runs.seconds(len(live)), further(len(live), runs.seconds)) if count > made else (0.0, 0.0)
            price = (further(total, session.seconds) + more) * tokens / seconds
            live = [place for place in live if chances[place] > price]
            if not live:
                break
            total, spent = total + len(live), spent + run
            seconds = session.seconds(total) + spent
            for place in live:
                tokens += chances[place]
                counts[place] = count
                chances[place] *= acceptance[place]
            if tokens / seconds > best:
                best, kept = tokens / seconds, list(counts)
        return kept

    def forget(self, request_id: str) -> None:
        self._seen.pop(request_id, None)
