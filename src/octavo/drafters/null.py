"""The drafter that proposes nothing: decoding token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.drafters.port import Drafter, DraftRow, DraftSession, Proposal
from octavo.program.ir import Program, Weight
from octavo.request import Request
from octavo.weights.kinds import Tensor

_NOTHING = Proposal()


class NullDrafter:
    programs: Mapping[str, Program] = {}
    taps: tuple[str, ...] = ()
    max_draft = 0
    tail = 0
    hit_backoff = 0
    lookahead = 0

    def tensor(self, weight: Weight) -> Tensor | None:
        return None

    def serves(self, request: Request) -> bool:
        return False

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        return ()

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        return

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        return [_NOTHING] * len(rows)

    def forget(self, request_id: str) -> None:
        return


def no_drafter(target: object) -> Drafter:
    """A DraftMaker."""
    return NullDrafter()
