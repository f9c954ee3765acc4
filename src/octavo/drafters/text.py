"""Drafters that look up what comes next in text they have seen: no program, no weights, any model.

A lookup is a file of its own (ngram.py, suffix.py, recall.py): it takes in the tokens of a request and says what
followed the last of them before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from octavo.drafters.belief import Belief, Beliefs
from octavo.drafters.pace import further
from octavo.drafters.port import DraftRow, DraftSession, Proposal, wants_drafts
from octavo.drafters.worth import PACE_GAIN, worthwhile
from octavo.program.ir import Program, Weight
from octavo.request import Request
from octavo.weights.kinds import Tensor

MOST = 8  # drafts of a row
MOST_ROWS = 2**16  # of a step
TAKEN = 2048  # tokens that one step takes in of a request, so that a long prompt delays no one
ASKED = 8  # steps for which terms stand
LOOK = 0.02  # of a token: what looking is to bring to a step
NAP, DEAR_REST = 7, 15  # most steps without a look where it does not, and where no draft can pay
FIRST_GAIN, GAIN_KEPT = 0.2, 0.9  # what it is believed to bring at first; of what it brought, a token later
_NOTHING = Proposal()


Guess = tuple[int, int]  # how many tokens at the end of the text stood before it, or what else says so; the next token


class Lookup(Protocol):
    """Of one request."""

    def add(self, token: int) -> None: ...
    def guesses(self) -> Sequence[Guess]:
        """What may follow the last token; of those that are believed alike the first is proposed."""

    def follow(self, guess: int, most: int) -> Sequence[int] | Proposal:
        """The guess in this place and what comes after it: a chain, of so many tokens at most."""


class Shelf(Protocol):
    """Makes lookups, and may keep the text of requests that have ended."""

    def open(self, request: Request) -> Lookup: ...
    def close(self, request: Request, lookup: Lookup) -> None: ...


class Text:
    """Of one request. taken: tokens that the lookup knows. chance: that the best guess comes true. gain: tokens that a
    guess brings to a step lately, what its row costs taken off."""

    __slots__ = (
        "_belief",
        "_best",
        "_found",
        "_last",
        "_lookup",
        "chance",
        "gain",
        "request",
        "taken",
    )

    def __init__(self, request: Request, lookup: Lookup, belief: Belief, gain: float) -> None:
        self.request = request
        self.taken = 0
        self.chance = 0.0
        self._lookup = lookup
        self._belief = belief
        self.gain = gain
        self._found: Sequence[Guess] = ()
        self._best = 0
        self._last = -1  # token

    def take(self, tokens: Sequence[int], price: float) -> None:
        """The next tokens. Those of the output show what guesses are worth, at the price of a row."""
        lookup, belief = self._lookup, self._belief
        prompt = len(self.request.prompt_ids) - self.taken
        for place, token in enumerate(tokens):
            if place < prompt:
                lookup.add(token)
                continue
            if self._found:
                came = self._found[self._best][1] == token
                self.gain = GAIN_KEPT * self.gain + (1 - GAIN_KEPT) * (came - price) * (self.chance > price)
                for agreed, guess in self._found:
                    belief.hear(agreed, guess == token)
            else:
                self.gain *= GAIN_KEPT
            lookup.add(token)
            self._weigh(lookup.guesses())
        if tokens:
            self._last = tokens[-1]
        self.taken += len(tokens)

    def _weigh(self, found: Sequence[Guess]) -> None:
        self._found, self.chance, self._best = found, 0.0, 0
        for place, (agreed, _) in enumerate(found):
            chance = self._belief.chance(agreed)
            if chance > self.chance:
                self.chance, self._best = chance, place

    @property
    def ended(self) -> bool:
        """The request ends with the last token."""
        return self._last in self.request.eos_ids and not self.request.params.ignore_eos

    def follow(self, least: float) -> tuple[Proposal, list[float]]:
        """The best guess, and of each of its tokens the chance of all up to it, as far as that is more than `least`."""
        if not self._found:
            return _NOTHING, []
        found = self._lookup.follow(self._best, MOST)
        proposal = found if isinstance(found, Proposal) else Proposal(tuple(found))
        return proposal, self._belief.path(self._found[self._best][0], len(proposal.token_ids), least)

    def close(self, shelf: Shelf) -> None:
        shelf.close(self.request, self._lookup)


class TextDrafter:
    """hit_backoff 0: what the prefix cache gave was never in a row, and is read off the request."""

    programs: Mapping[str, Program] = {}
    taps: tuple[str, ...] = ()
    max_draft = MOST
    tail = 0
    hit_backoff = 0
    lookahead = 0

    def __init__(self, shelf: Shelf, *, adaptive: bool = True, room: int = MOST_ROWS) -> None:
        """adaptive: as many drafts as are worth their rows (worth.py), else as many as there are. room: most drafts of
        all requests of a step."""
        self._room = room
        self._shelf = shelf
        self._adaptive = adaptive
        self._beliefs = Beliefs()
        self._open: dict[str, Text] = {}
        self._terms: dict[int, Terms] = {}  # by the requests of a step
        self._gain = FIRST_GAIN  # of requests lately
        self._rest = self._nap = 0  # steps of which nothing is taken note; as many as last time

    def tensor(self, weight: Weight) -> Tensor | None:
        return None

    def serves(self, request: Request) -> bool:
        """A function of the caller's over logits is not asked about texts that may never be."""
        return wants_drafts(request) and (not self._adaptive or request.params.logits_processor is None)

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        """Nearly all steps of nearly all texts end here: nothing that could follow is likely enough."""
        if self._rest:
            self._rest -= 1
            return ()
        terms = self._terms_of(len(requests), session)
        if not terms.hopes:
            self._rest = DEAR_REST if session.seconds(len(requests)) > 0 else 0
            return ()
        texts: list[Text] = []
        likely = False
        for request, news in zip(requests, tokens, strict=True):
            text = self._open.get(request.id)
            if text is None or text.taken < request.num_tokens - TAKEN:
                return None
            if text.taken < request.num_tokens:
                text.take(request.tokens(text.taken, request.num_tokens), terms.price)
            text.take(news, terms.price)
            texts.append(text)
            likely = likely or text.chance > terms.least
        self._tire(texts)
        return self._proposals(session, texts) if likely and not self._rest else ()

    def _tire(self, texts: Sequence[Text]) -> None:
        """Looking costs about as much as a guess must bring: where none does, it is done more and more rarely."""
        if not self._adaptive or any(text.gain > LOOK for text in texts):
            self._nap = 0
        else:
            self._rest = self._nap = min(2 * self._nap + 1, NAP)

    def _terms_of(self, rows: int, session: DraftSession) -> Terms:
        terms = self._terms.get(rows)
        if terms is None or not terms.stands:
            terms = self._terms[rows] = Terms(rows, session.seconds if self._adaptive else _free)
        terms.stands -= 1
        return terms

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        terms = self._terms_of(len(rows), session)
        for row in rows:
            request = row.request
            text = self._open.get(request.id)
            if text is None:
                text = Text(request, self._shelf.open(request), self._beliefs.open(request), self._gain)
                self._open[request.id] = text
                self._nap = self._rest = 0
            if not terms.hopes and not row.row.num_drafts:
                continue
            end = row.row.start + len(row.row.token_ids) - row.row.num_drafts
            upto = min(end, text.taken + TAKEN)
            text.take(request.tokens(text.taken, upto), terms.price)
            if upto == end:
                text.take(row.result.token_ids, terms.price)

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        texts = [self._open[row.request.id] for row in rows]
        known = [row.request.num_tokens + len(row.result.token_ids) for row in rows]
        ready = [text if text.taken == count else None for text, count in zip(texts, known, strict=True)]
        return self._proposals(session, ready)

    def _proposals(self, session: DraftSession, texts: Sequence[Text | None]) -> list[Proposal]:
        """None: of a text that is not known to its end."""
        terms = self._terms_of(len(texts), session) if texts else None
        if terms is None or not terms.hopes:
            return [_NOTHING] * len(texts)
        found = [(_NOTHING, []) if text is None or text.ended else text.follow(terms.least) for text in texts]
        chances = [each for _, each in found]
        counts = list(map(len, chances))
        if self._adaptive:
            counts, _ = worthwhile(chances, len(texts), session.seconds, room=self._room)
        return [_first(proposal, count) for (proposal, _), count in zip(found, counts, strict=True)]

    def forget(self, request_id: str) -> None:
        text = self._open.pop(request_id, None)
        if text is not None:
            self._gain = max((self._gain + text.gain) / 2, 2 * LOOK)
            text.close(self._shelf)


class Terms:
    """What drafts are worth in steps of so many requests, for a while. hopes: whether any would pay that all came true;
    not while the pace is unknown. least: the chance that one needs to be worth a row where rows cost least. price: of
    one alone, as a share of a token."""

    def __init__(self, rows: int, seconds: Callable[[int], float]) -> None:
        plain = seconds(rows)
        self.stands = ASKED if plain > 0 else 1
        most = range(rows + 1, rows * (1 + MOST) + 1, max(rows // 4, 1))
        self.hopes = plain > 0 and any(full * plain >= PACE_GAIN * rows * seconds(full) for full in most)
        self.least = further(rows, seconds) * rows / plain if self.hopes else 0.0
        self.price = (seconds(rows + 1) - plain) * rows / plain if self.hopes else 0.0


def _free(rows: int) -> float:
    """Of rows that are added whatever they cost."""
    return 1.0


def _first(found: Proposal, count: int) -> Proposal:
    return Proposal(found.token_ids[:count], (), found.chances[:count]) if count else _NOTHING
