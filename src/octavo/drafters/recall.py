"""Recall: what followed the longest end of a request's text that stood before, in its own prompt and output or in
recent outputs of its tenant.

Each pair of tokens knows where it last stood, and each place where its pair stood before: a token is taken in by one
look-up, and places are compared only when somebody asks what follows. Where no pair stood before, a copy may go on
behind a token that was changed, or after the last place of the last token alone: which of these is to be believed,
what came of them says (belief.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.drafters.belief import ASTRAY, LONGEST, OTHERS
from octavo.drafters.suffix import Store
from octavo.drafters.text import MOST, Guess

PLACES = 12  # that are compared, the latest first
CHANGED = 1  # tokens in a row that a copy may have changed


class Recall:
    __slots__ = ("_before", "_changed", "_copied", "_found", "_last", "_one", "_others", "_tokens")

    def __init__(self, others: Store) -> None:
        self._tokens: list[int] = []
        self._last: dict[int, int] = {}  # a token, or a pair -> where it last ended, as a count of tokens
        self._before: list[int] = []  # of each token: where the pair that it ends had ended before; 0 for nowhere
        self._one = 0  # where the last token had stood before
        self._copied = 0  # what followed last time stands here, as far as the text is a copy; 0 for none
        self._changed = 0  # tokens in a row that were none
        self._others = others
        self._found: list[Sequence[int] | int] = []  # where each guess stands, or what others say

    def add(self, token: int) -> None:
        tokens, last, copied = self._tokens, self._last, self._copied
        if copied:
            same = copied < len(tokens) and tokens[copied] == token
            self._changed = 0 if same else self._changed + 1
            self._copied = copied + 1
        pair = (tokens[-1] + 1 if tokens else 0) << 32 | token
        tokens.append(token)
        end = len(tokens)
        self._before.append(last.get(pair, 0))
        self._one = last.get(~token, 0)
        last[pair] = last[~token] = end

    def guesses(self) -> Sequence[Guess]:
        """Of equally long ends, the latest."""
        tokens = self._tokens
        length, place = self._longest()
        if length:
            self._copied, self._changed, self._found = place, 0, [place]
            return ((length, tokens[place]),)
        guesses: list[Guess] = []
        found: list[Sequence[int] | int] = []
        self._found = found
        if self._copied and self._changed <= CHANGED:
            found.append(self._copied)
            guesses.append((ASTRAY, tokens[self._copied]))
        if self._one:
            found.append(self._one)
            guesses.append((1, tokens[self._one]))
        if others := self._others.follow(tokens, MOST):
            found.append(others)
            guesses.append((OTHERS, others[0]))
        return guesses

    def follow(self, guess: int, most: int) -> Sequence[int]:
        found = self._found[guess]
        return self._tokens[found : found + most] if isinstance(found, int) else found[:most]

    def _longest(self) -> tuple[int, int]:
        """(tokens that agree, where those of another place end); zeros where no pair does."""
        tokens, before = self._tokens, self._before
        place = before[-1]
        best = found = 0
        for _ in range(PLACES):
            if not place or best == LONGEST:
                break
            length = agreed(tokens, place)
            if length > best:
                best, found = length, place
            place = before[place - 1]
        return best, found


def agreed(tokens: Sequence[int], end: int) -> int:
    """How many tokens before `end` are those at the end of all, a pair of which is known to be."""
    last, length = len(tokens), 2
    while length < LONGEST and length < end and tokens[end - 1 - length] == tokens[last - 1 - length]:
        length += 1
    return length
