"""How long an output may reason: when its budget of tokens is spent, the mark that closes the reasoning must come.

Where an output stands is a function of its own tokens: what they spell is searched for the marks, whether a mark is one
token or many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.request import Thinking


class _Place(NamedTuple):
    """spent: tokens of reasoning so far. tail: bytes that a mark may have begun with. at: in the closing tokens, -1
    while they are not due. closed: how often they came."""

    inside: bool
    spent: int
    tail: bytes
    at: int
    closed: int = 0


class ThoughtLimit:
    """One output. taken: how many of its tokens were seen. spell: a token -> its bytes, special or not."""

    def __init__(self, thinking: Thinking, spell: Callable[[int], bytes]) -> None:
        self._open, self._close = thinking.open.encode(), thinking.close.encode()
        self._closings = thinking.closing, thinking.again
        self._budget = thinking.budget
        self._spell = spell
        self._place = self._due(_Place(thinking.opened, 0, b"", -1))
        self.taken = 0

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._place = self._after(self._place, token)
        self.taken += len(tokens)

    def forced(self, drafts: Sequence[int] = ()) -> int | None:
        """The token that must come after `drafts`; None where any may."""
        place = self._place
        for token in drafts:
            place = self._after(place, token)
        return None if place.at < 0 else self._closing(place)[place.at]

    def ahead(self) -> tuple[int, ...]:
        """All that must come now."""
        return self._closing(self._place)[self._place.at :] if self._place.at >= 0 else ()

    def _closing(self, place: _Place) -> tuple[int, ...]:
        return self._closings[min(place.closed, 1)]

    def _after(self, place: _Place, token: int) -> _Place:
        if place.at >= 0:
            at = place.at + 1
            if at < len(self._closing(place)):
                return place._replace(at=at)
            return _Place(False, place.spent, self._left(place), -1, place.closed + 1)
        spelled = place.tail + self._spell(token)
        mark = self._close if place.inside else self._open
        spent = place.spent + place.inside
        if mark in spelled:
            return self._due(_Place(not place.inside, spent, b"", -1, place.closed))
        return self._due(_Place(place.inside, spent, spelled[-len(mark) :], -1, place.closed))

    def _left(self, place: _Place) -> bytes:
        """What stands after the closing mark may begin the next opening one."""
        spelled = b"".join(map(self._spell, self._closing(place)))
        return spelled.partition(self._close)[2]

    def _due(self, place: _Place) -> _Place:
        return place._replace(at=0) if place.inside and place.spent >= self._budget else place
