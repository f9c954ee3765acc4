"""What drafters have in common that guess from the state that gave the last token, and keep nothing between steps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.config import VerifyRule
from octavo.drafters.drawn import Draws
from octavo.drafters.folder import HeadFolder
from octavo.drafters.port import DraftRow, DraftSession, Elsewhere, Proposal, wants_drafts
from octavo.drafters.tree import Tree, TreeWorth, proposal
from octavo.program.ir import Weight
from octavo.request import Request


class HeadDrafter(ABC):
    hit_backoff = 0
    lookahead = 0

    def __init__(self, folder: HeadFolder, rule: VerifyRule, *, adaptive: bool) -> None:
        """rule: by which drafts are accepted."""
        self._folder = folder
        self._draws = Draws(rule)
        self._worth = TreeWorth(adaptive=adaptive)

    def tensor(self, weight: Weight) -> Elsewhere | None:
        return self._folder.tensor(weight)

    def serves(self, request: Request) -> bool:
        return wants_drafts(request)

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        return None

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        for row in rows:
            if row.result.token_ids:
                self._worth.hear(row.request.id, row.row.num_drafts, len(row.result.accepted))

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        asked = [number for number, row in enumerate(rows) if not row.ended]
        proposals = [Proposal()] * len(rows)
        if not asked or not self._worth.asks(len(rows), session):
            return proposals
        begun = time.perf_counter()
        chosen = [rows[number] for number in asked]
        least = [self._worth.least(row.request.id, len(rows), session) for row in chosen]
        grown = zip((row.request.id for row in chosen), self._trees(session, chosen, least), strict=True)
        for number, tree in zip(asked, self._worth.best(list(grown), len(rows), session), strict=True):
            self._worth.proposed(rows[number].request.id, tree.chances)
            proposals[number] = proposal(tree)
        self._worth.took(time.perf_counter() - begun)
        return proposals

    def forget(self, request_id: str) -> None:
        self._worth.forget(request_id)

    @abstractmethod
    def _trees(self, session: DraftSession, rows: Sequence[DraftRow], least: Sequence[float]) -> list[Tree]:
        """Per row, nodes whose chance is above its `least`, parents before children. Of nodes that are drawn it is not
        the own chance that decides, but what is known before the draw."""
