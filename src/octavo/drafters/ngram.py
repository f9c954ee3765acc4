"""Prompt lookup: what followed the last n tokens where they last stood in the request, the longest n first."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.drafters.text import Guess
from octavo.request import Request

LONGEST, SHORTEST = 4, 2  # tokens that must agree


class Ngrams:
    """ends: n-gram -> where it last ended before the present end, as a count of tokens."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._found = 0  # where the longest n-gram at the end stood before; 0 for nowhere
        self._length = 0  # of that n-gram

    def add(self, token: int) -> None:
        tokens, self._found, self._length = self._tokens, 0, 0
        tokens.append(token)
        end = len(tokens)
        for length in range(min(LONGEST, end), SHORTEST - 1, -1):
            gram = tuple(tokens[end - length :])
            before = self._ends.get(gram, 0)
            if before and not self._found:
                self._found, self._length = before, length
            self._ends[gram] = end

    def guesses(self) -> Sequence[Guess]:
        return ((self._length, self._tokens[self._found]),) if self._found else ()

    def follow(self, guess: int, most: int) -> Sequence[int]:
        return self._tokens[self._found : self._found + most]


class NgramShelf:
    def open(self, request: Request) -> Ngrams:
        return Ngrams()

    def close(self, request: Request, lookup: object) -> None:
        return
