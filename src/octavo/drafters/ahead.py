"""The drafter of outputs that are bound: where only one text can follow, its tokens are proposed at once.

A form often leaves one way to go on (the rest of a key, the mark that ends reasoning); the usual tokens of that text
are drafts like any other: accepted where the target, under the same masks, samples them. So an output is what it would
be token by token, and a step that was not needed is saved. Everything else is left to an inner drafter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.drafters.port import Drafter, DraftRow, DraftSession, Elsewhere, Proposal
from octavo.grammar.bounds import Bounds
from octavo.grammar.structures import Structures
from octavo.program.ir import Program, Weight
from octavo.request import Request
from octavo.weights.kinds import Tensor

MOST = 8  # tokens of one proposal: beyond, a rejected one costs more than the steps saved


class AheadDrafter:
    def __init__(self, structures: Structures, inner: Drafter) -> None:
        self.programs: Mapping[str, Program] = inner.programs
        self.taps = inner.taps
        self.max_draft = max(inner.max_draft, MOST)
        self.tail = inner.tail
        self.hit_backoff = inner.hit_backoff
        self.lookahead = inner.lookahead
        self._structures = structures
        self._inner = inner
        self._bounds: dict[str, Bounds] = {}
        self._asked: Sequence[Request] = ()
        self._any_bound = False

    def tensor(self, weight: Weight) -> Tensor | Elsewhere | None:
        return self._inner.tensor(weight)

    def serves(self, request: Request) -> bool:
        return _bound(request) or self._inner.serves(request)

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        """Who is not bound is the inner one's: it serves the rest of them all."""
        if requests is not self._asked:  # the same list as long as the same requests share steps
            self._asked, self._any_bound = requests, any(map(_bound, requests))
        if self._any_bound:
            return None
        return self._inner.follow(session, requests, tokens)

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        served = [row for row in rows if self._inner.serves(row.request)]
        if served:
            self._inner.extend(session, served)

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        served = [row for row in rows if self._inner.serves(row.request)]
        others = iter(self._inner.propose(session, served) if served else ())
        proposals = []
        for row in rows:
            inner = next(others) if self._inner.serves(row.request) else Proposal()
            ahead = self._ahead(row) if _bound(row.request) else ()
            proposals.append(Proposal(ahead) if ahead else inner)
        return proposals

    def forget(self, request_id: str) -> None:
        self._bounds.pop(request_id, None)
        self._inner.forget(request_id)

    def _ahead(self, row: DraftRow) -> tuple[int, ...]:
        request, tokens = row.request, row.result.token_ids
        if tokens[-1] in request.eos_ids:
            return ()
        bounds = self._bounds.get(request.id)
        if bounds is None:
            bounds = self._bounds[request.id] = self._structures.bounds(request)
        return tuple(bounds.ahead([*request.output_ids, *tokens])[:MOST])


def _bound(request: Request) -> bool:
    return request.params.structure is not None or request.thinking is not None
