"""The trained n-gram model as drafter: `ngramlm:FILE`, made by `octavo train ngram`.

Where the end of a request's text stood before in it, what followed there is proposed first (suffix.py); elsewhere the
model goes on token by token, as long as what it holds likeliest is likely enough. A request that samples chooses with
its own noise, which the target's choice has too; under rules that ask for chances its drafts are drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log

from octavo.drafters.belief import LONGEST, OTHERS
from octavo.drafters.drawn import Chain, Draws, Picked, drawn
from octavo.drafters.likely import in_order
from octavo.drafters.ngram_file import NgramModel
from octavo.drafters.port import Proposal
from octavo.drafters.suffix import SHORTEST, Automaton
from octavo.drafters.target import Target
from octavo.drafters.text import Guess
from octavo.request import Request
from octavo.weights.stated import tokenizer_of

CHOICES = 8  # tokens that may follow a context
LIKELY = 0.25  # chance of the likeliest: with less the chain ends before it


class NgramText:
    """One request."""

    def __init__(self, model: NgramModel, request: Request, *, drawn: bool) -> None:
        self._model = model
        self._request = request
        self._drawn = drawn and not request.params.greedy
        self._own = Automaton()
        self._last: deque[int] = deque(maxlen=model.order - 1)

    def add(self, token: int) -> None:
        self._own.add(token)
        self._last.append(token)

    def guesses(self) -> Sequence[Guess]:
        length, end = self._own.matched
        if length >= SHORTEST:
            return ((min(length, LONGEST), self._own.tokens[end]),)
        further = self._further(1).token_ids
        return ((OTHERS, further[0]),) if further else ()

    def follow(self, guess: int, most: int) -> Sequence[int] | Proposal:
        length, end = self._own.matched
        return self._own.tokens[end : end + most] if length >= SHORTEST else self._further(most)

    def _further(self, most: int) -> Proposal:
        chain = Chain()
        context = deque(self._last, maxlen=self._last.maxlen)
        root = len(self._own.tokens)
        while len(chain.tokens) < most:
            likely = self._model.likely(tuple(context), CHOICES)
            if not likely or likely[0][1] < LIKELY:
                break
            context.append(chain.add(self._picked(likely, root, len(chain.tokens))))
        return chain.proposal()

    def _picked(self, likely: Sequence[tuple[int, float]], root: int, place: int) -> Picked:
        if self._drawn:
            return drawn([(token, log(chance)) for token, chance in likely], self._request, root - 1, place)
        ids = [token for token, _ in likely]
        choices = [(rank, log(chance)) for rank, (_, chance) in enumerate(likely)]
        return Picked(in_order(choices, self._request, root + place, ids, 1))


class NgramModelShelf:
    def __init__(self, path: str, target: Target) -> None:
        """Raises MissingFileError, BadFileError, ConfigError: one line that names the file."""
        self._model = NgramModel(path)
        self._model.check(tokenizer_of(target.checkpoint))
        self._draws = Draws(target.config.verify)

    def open(self, request: Request) -> NgramText:
        return NgramText(self._model, request, drawn=self._draws.wanted(request))

    def close(self, request: Request, lookup: object) -> None:
        return
