"""How far what was looked up is believed: what came of it, by how many tokens of the text had agreed.

Every token of an output tells, whether it was proposed or only looked up: so nothing has to be tried to be known, and
what never comes true costs no row. A request is believed what the latest ones of its kind showed, until its own text
says more.
"""

from __future__ import annotations

from octavo.request import Request

LONGEST = 16  # agreeing tokens that are told apart
OTHERS = 0  # for a number of them: the text of others says what follows
ASTRAY = LONGEST + 1  # and: a copy that went another way may go on
# From so many agreeing tokens on a class of its own, and the chance of its next token before any was seen.
CLASSES = (
    (OTHERS, 0.3),
    (1, 0.15),
    (2, 0.3),
    (3, 0.4),
    (4, 0.5),
    (6, 0.65),
    (8, 0.8),
    (12, 0.9),
    (ASTRAY, 0.2),
)
OWN_KEPT, KEPT = 0.9, 0.98  # of what was seen of a request, and of all of a kind, at each token of a class
OWN_TRIES, TRIES = 3.0, 8.0  # tokens that what is believed at first counts as
MOST = 0.99


_CLASS = tuple(
    max(place for place, (least, _) in enumerate(CLASSES) if agreed >= least) for agreed in range(ASTRAY + 1)
)


class Tally:
    """(hits, tries) of each class."""

    __slots__ = ("hits", "tries")

    def __init__(self, tries: float) -> None:
        self.hits = [chance * tries for _, chance in CLASSES]
        self.tries = [tries] * len(CLASSES)


class Belief:
    """Of one request. kind: of all requests like it."""

    __slots__ = ("_hits", "_kind", "_tries")

    def __init__(self, kind: Tally) -> None:
        self._kind = kind
        self._hits = [0.0] * len(CLASSES)
        self._tries = [0.0] * len(CLASSES)

    def hear(self, agreed: int, came: bool) -> None:
        place, kind = _CLASS[agreed], self._kind
        self._hits[place] = OWN_KEPT * self._hits[place] + came
        self._tries[place] = OWN_KEPT * self._tries[place] + 1
        kind.hits[place] = KEPT * kind.hits[place] + came
        kind.tries[place] = KEPT * kind.tries[place] + 1

    def chance(self, agreed: int) -> float:
        """That the next token is what was looked up."""
        place, kind = _CLASS[agreed], self._kind
        first = OWN_TRIES * kind.hits[place] / kind.tries[place]
        return min((self._hits[place] + first) / (self._tries[place] + OWN_TRIES), MOST)

    def path(self, agreed: int, count: int, least: float = 0.0) -> list[float]:
        """Of the first so many tokens looked up, the chance of each that it and all before it come, as long as that is
        more than `least`."""
        chances: list[float] = []
        chance = 1.0
        for _ in range(count):
            chance *= self.chance(agreed)
            if chance <= least:
                break
            chances.append(chance)
            if agreed == ASTRAY:
                agreed = 1
            if agreed != OTHERS:
                agreed = min(agreed + 1, LONGEST)
        return chances


class Beliefs:
    """Greedy outputs repeat themselves more than sampled ones."""

    def __init__(self) -> None:
        self._kinds = {greedy: Tally(TRIES) for greedy in (False, True)}

    def open(self, request: Request) -> Belief:
        return Belief(self._kinds[request.params.greedy])
