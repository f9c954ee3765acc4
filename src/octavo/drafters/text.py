"""Drafters that look up what comes next in text they have seen: no program, no weights, any model.

A lookup is a file of its own (ngram.py, suffix.py): it takes in the tokens of a request and says what followed the
last of them before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from octavo.drafters.port import DraftRow, DraftSession, Proposal, wants_drafts
from octavo.drafters.worth import Worth
from octavo.program.ir import Program, Weight
from octavo.request import Request
from octavo.weights.kinds import Tensor

MOST = 8  # drafts of a row
# The longer the end that stood before, the likelier is what followed it: from so many tokens on, the acceptance of a
# draft before any was seen; each is learnt apart.
LENGTHS = ((0, 0.65), (2, 0.65), (4, 0.8), (8, 0.92))
DEAR = 0.9  # a price that hardly a draft is worth
TAKEN = 2048  # tokens that one step takes in of a request, so that a long prompt delays no one
_NOTHING = Proposal()


class Lookup(Protocol):
    """Of one request."""

    @property
    def length(self) -> int:
        """Tokens at the end that stood before in the request's own text; 0 where others say what follows."""

    def add(self, token: int) -> None: ...
    def follow(self, most: int) -> Sequence[int] | Proposal:
        """What followed the last tokens where they stood before, at most so many; a chain."""


class Shelf(Protocol):
    """Makes lookups, and may keep the text of requests that have ended."""

    def open(self, request: Request) -> Lookup: ...
    def close(self, request: Request, lookup: Lookup) -> None: ...


class TextDrafter:
    """hit_backoff 0: what the prefix cache gave was never in a row, and is read off the request."""

    programs: Mapping[str, Program] = {}
    taps: tuple[str, ...] = ()
    max_draft = MOST
    tail = 0
    hit_backoff = 0
    lookahead = 0

    def __init__(self, shelf: Shelf, *, adaptive: bool = True) -> None:
        """adaptive: as many drafts as are worth their rows (worth.py), else as many as there are."""
        self._shelf = shelf
        self._worths = [Worth(MOST, adaptive=adaptive, first=first, shared=True) for _, first in LENGTHS]
        self._idle = False  # so many requests share a step that no draft is worth its row
        self._lately: dict[str, int] = {}  # request -> which of them its last drafts came under
        self._open: dict[str, tuple[Request, Lookup, int]] = {}  # and how many of its tokens were taken in

    def tensor(self, weight: Weight) -> Tensor | None:
        return None

    def serves(self, request: Request) -> bool:
        return wants_drafts(request)

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        """While idle, requests that are known are left alone: their tokens are taken in when drafts are worth it."""
        for row in rows:
            if self._idle and row.request.id in self._open and not row.row.num_drafts:
                continue
            request, sampled = row.request, row.result.token_ids
            if request.id not in self._open:
                self._open[request.id] = request, self._shelf.open(request), 0
            _, lookup, taken = self._open[request.id]
            known = row.row.start + len(row.row.token_ids) - row.row.num_drafts
            upto = min(known, taken + TAKEN)
            for token in request.tokens(taken, upto):
                lookup.add(token)
            if upto == known:
                for token in sampled:
                    lookup.add(token)
                upto += len(sampled)
            self._open[request.id] = request, lookup, max(taken, upto)
            if sampled:
                self._hear(row)

    def _hear(self, row: DraftRow) -> None:
        drafts, name = row.row.num_drafts, row.request.id
        heard = [self._worths[self._lately.get(name, 0)]] if drafts else self._worths
        for worth in heard:
            worth.hear(name, drafts, len(row.result.accepted))

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        self._idle = self._worths[0].price(len(rows), session) > DEAR
        if self._idle:
            return [_NOTHING] * len(rows)
        return [self._proposal(row, len(rows), session) for row in rows]

    def _proposal(self, row: DraftRow, rows: int, session: DraftSession) -> Proposal:
        request = row.request
        if row.ended:
            return Proposal()
        _, lookup, taken = self._open[request.id]
        if taken < request.num_tokens + len(row.result.token_ids):
            return Proposal()
        own = max(place for place, (least, _) in enumerate(LENGTHS) if lookup.length >= least)
        self._lately[request.id] = own
        count = self._worths[own].count(request.id, rows, session)
        found = lookup.follow(count) if count else ()
        return found if isinstance(found, Proposal) else Proposal(tuple(found))

    def forget(self, request_id: str) -> None:
        self._lately.pop(request_id, None)
        for worth in self._worths:
            worth.forget(request_id)
        entry = self._open.pop(request_id, None)
        if entry is not None:
            self._shelf.close(entry[0], entry[1])
