"""The drafter that knows what will be said, out of a run without drafts: what the mechanism itself costs and brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.drafters.port import DraftRow, DraftSession, Elsewhere, Proposal
from octavo.program.ir import Program, Weight
from octavo.request import Request
from octavo.weights.kinds import Tensor


class RecordedDrafter:
    """said: prompt -> the output to come; filled by its owner. count: drafts of a row."""

    programs: Mapping[str, Program] = {}
    taps: tuple[str, ...] = ()
    hit_backoff = 0
    lookahead = 0

    def __init__(self, count: int = 4) -> None:
        self.said: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.max_draft = self.tail = self._count = count

    def tensor(self, weight: Weight) -> Tensor | Elsewhere | None:
        return None

    def serves(self, request: Request) -> bool:
        return bool(request.params.speculate)

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        return None

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        return

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        proposals = []
        for row in rows:
            begin = len(row.request.output_ids) + len(row.result.token_ids)
            said = self.said.get(row.request.prompt_ids, ())
            proposals.append(Proposal(said[begin : begin + self._count]))
        return proposals

    def forget(self, request_id: str) -> None:
        return
