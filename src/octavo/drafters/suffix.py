"""Suffix lookup: what followed the longest end of a request's text that stood anywhere before, in its own prompt and
output or in recent outputs of its tenant.

A suffix automaton holds every substring of a text and grows by a token in constant time on average; the link of its
last state is the longest end that stood before. Outputs that have ended are kept by tenant, within bounds, under their
n-grams: they are asked only where the request's own text has nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from octavo.drafters.belief import LONGEST, OTHERS
from octavo.drafters.text import Guess, Lookup
from octavo.request import Request

SHORTEST = 2  # tokens that must agree in the request's own text
KEPT_GRAM = 3  # and in the outputs of others
TENANTS, OUTPUTS, OUTPUT_TOKENS = 64, 64, 4096  # that are kept: tenants, outputs of each, tokens of one


class Automaton:
    """States by number; 0 is the empty text. end: where a state's text last ended, as a count of tokens."""

    __slots__ = ("_ends", "_last", "_lengths", "_links", "_moves", "matched", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.matched = (0, 0)  # length of the longest end that stood before, and where that ended
        self._moves: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]
        self._ends = [0]
        self._last = 0

    def add(self, token: int) -> None:
        self.tokens.append(token)
        end = len(self.tokens)
        moves, links, lengths, ends = self._moves, self._links, self._lengths, self._ends
        new = self._state({}, lengths[self._last] + 1, end)
        state = self._last
        while state >= 0 and token not in moves[state]:
            moves[state][token] = new
            state = links[state]
        if state < 0:
            links[new] = 0
        else:
            target = moves[state][token]
            if lengths[state] + 1 != lengths[target]:
                target = self._split(state, token, target)
            links[new] = target
        self._last = new
        link = links[new]
        self.matched = lengths[link], ends[link]
        ends[link] = end

    def _split(self, state: int, token: int, target: int) -> int:
        """A state for the shorter texts of `target`, which have further ends now."""
        moves, links, lengths = self._moves, self._links, self._lengths
        clone = self._state(dict(moves[target]), lengths[state] + 1, self._ends[target])
        links[clone], links[target] = links[target], clone
        while state >= 0 and moves[state].get(token) == target:
            moves[state][token] = clone
            state = links[state]
        return clone

    def _state(self, moves: dict[int, int], length: int, end: int) -> int:
        self._moves.append(moves)
        self._links.append(-1)
        self._lengths.append(length)
        self._ends.append(end)
        return len(self._lengths) - 1


class Store:
    """Recent outputs of one tenant, the oldest let go of first."""

    def __init__(self) -> None:
        self._outputs: deque[tuple[int, ...]] = deque()
        self._first = 0  # number of the oldest that is kept
        self._places: dict[tuple[int, ...], tuple[int, int]] = {}  # n-gram -> (number of its output, tokens before)

    def keep(self, output: Sequence[int]) -> None:
        kept = tuple(output[:OUTPUT_TOKENS])
        if len(kept) <= KEPT_GRAM:
            return
        number = self._first + len(self._outputs)
        self._outputs.append(kept)
        for end in range(KEPT_GRAM, len(kept)):
            self._places[kept[end - KEPT_GRAM : end]] = number, end
        if len(self._outputs) > OUTPUTS:
            gone = self._outputs.popleft()
            for end in range(KEPT_GRAM, len(gone)):
                gram = gone[end - KEPT_GRAM : end]
                if self._places.get(gram, (self._first + 1, 0))[0] == self._first:
                    del self._places[gram]
            self._first += 1

    def follow(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        place = self._places.get(tuple(tokens[-KEPT_GRAM:])) if self._places else None
        if place is None:
            return ()
        number, end = place
        return self._outputs[number - self._first][end : end + most]


class Suffixes:
    def __init__(self, store: Store) -> None:
        self._automaton = Automaton()
        self._store = store

    def add(self, token: int) -> None:
        self._automaton.add(token)

    def guesses(self) -> Sequence[Guess]:
        length, end = self._automaton.matched
        if length >= SHORTEST:
            return ((min(length, LONGEST), self._automaton.tokens[end]),)
        others = self.follow(0, 1)
        return ((OTHERS, others[0]),) if others else ()

    def follow(self, guess: int, most: int) -> Sequence[int]:
        length, end = self._automaton.matched
        if length >= SHORTEST:
            return self._automaton.tokens[end : end + most]
        return self._store.follow(self._automaton.tokens, most)


class SuffixShelf:
    """Outputs are shared within a tenant and one cache salt, as prefixes are."""

    def __init__(self, lookup: Callable[[Store], Lookup] = Suffixes) -> None:
        self._lookup = lookup
        self._stores: OrderedDict[tuple[str, str], Store] = OrderedDict()

    def open(self, request: Request) -> Lookup:
        return self._lookup(self._store(request))

    def close(self, request: Request, lookup: object) -> None:
        self._store(request).keep(request.output_ids)

    def _store(self, request: Request) -> Store:
        name = request.tenant, request.salt
        store = self._stores.setdefault(name, Store())
        self._stores.move_to_end(name)
        if len(self._stores) > TENANTS:
            self._stores.popitem(last=False)
        return store
