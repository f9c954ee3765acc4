"""What a drafter's caches hold: of one request, and of full blocks that requests share.

A drafter that proposes nothing runs nothing, and the target's blocks are found by others all the same. So it remembers
by their tokens which blocks it has gone over, and goes over others again where it needs them: its entries are a
function of the tokens, so that writing them twice, also into a block that is shared, changes no bit.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from octavo.request import Request
from octavo.types import digest

BLOCKS = 1 << 16  # that are remembered; those that were not used for longest are forgotten first


class Course:
    """One request. preemptions: when it was admitted. held: tokens whose entries are in the drafter's caches; ran:
    tokens behind them that were run as drafts, whose entries are right as far as they were accepted. keys: of its full
    blocks; told, filled: of them, those that are remembered, and those that the target has filled."""

    __slots__ = ("filled", "held", "keys", "preemptions", "ran", "told")

    def __init__(self) -> None:
        self.preemptions = -1
        self.held = self.told = self.filled = 0
        self.ran: list[int] = []
        self.keys: list[bytes] = []


class Prefixes:
    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, course: Course, request: Request, cached: int) -> None:
        """The request begins behind `cached` tokens that the target's cache gave."""
        blocks = cached // self._block
        self._extend(course, request, request.tokens(len(course.keys) * self._block, blocks * self._block))
        known = next((place for place, key in enumerate(course.keys[:blocks]) if key not in self._held), blocks)
        for key in course.keys[:known]:
            self._held.move_to_end(key)
        course.held = cached if known == blocks else known * self._block
        course.told, course.filled = known, blocks

    def settle(self, course: Course, request: Request, tokens: Sequence[int], computed: int) -> None:
        """The target has computed so many tokens, of which `tokens` stand behind the blocks that have keys."""
        full, done = computed // self._block, min(course.held, computed) // self._block
        self._extend(course, request, tokens[: full * self._block - len(course.keys) * self._block])
        for key in course.keys[course.told : done]:
            self._held[key] = None
            self._held.move_to_end(key)
        course.told = max(course.told, done)
        for key in course.keys[max(course.filled, done) : full]:
            self._held.pop(key, None)
        course.filled = max(course.filled, full)
        while len(self._held) > BLOCKS:
            self._held.popitem(last=False)

    def _extend(self, course: Course, request: Request, tokens: Sequence[int]) -> None:
        for begin in range(0, len(tokens) - self._block + 1, self._block):
            parent = course.keys[-1] if course.keys else digest("adapter", request.adapter, "salt", request.salt)
            course.keys.append(digest(parent, array("q", tokens[begin : begin + self._block]).tobytes()))
