"""The port between the runner and a drafter: what it declares before load, what it sees of a step, what it answers.

A drafter runs its own programs in the target's session: they share the block tables, the thread pool and the header's
layout, and hang their own cache tensors on the target's groups (builder.group with the same name and rule). Whatever it
proposes, the text is the target's: a draft is accepted only where it equals the token that the target samples.

    declared     programs, taps, max_draft, tail, hit_backoff, lookahead, tensor(weight)
    each step    of the requests that it serves(request):
                 follow(session, requests, tokens)   where each goes on: Proposals at once, or
                 extend(session, rows)   the target has run and sampled: take note of its rows, its exports
                 propose(session, rows)  one Proposal per row that sampled
    the end      forget(request_id)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.drafters.target import Target
from octavo.program.ir import Program, Weight
from octavo.request import Request, Row, RowResult
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.kinds import Tensor


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row of the step. `begin`: the step row of its first token, for taking the target's exports [T, width].
    `logits`: the row of its first logits, for taking those of [R, width].

    result.token_ids is what commit will append (empty when the row does not sample); the last of them is not in any
    cache yet. result.accepted: offsets in row.token_ids of the accepted drafts.
    """

    request: Request
    row: Row
    begin: int
    result: RowResult
    logits: int = 0

    @property
    def last(self) -> int:
        """The row of the logits that gave the last of result.token_ids."""
        row, accepted = self.row, self.result.accepted
        offset = accepted[-1] if accepted else len(row.token_ids) - row.num_drafts - 1
        return self.logits + offset - row.logits_from

    @property
    def ended(self) -> bool:
        """The request ends with the last token."""
        return self.result.token_ids[-1] in self.request.eos_ids and not self.request.params.ignore_eos


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens after the last sampled one. parents: empty for a chain, else as Request.draft_parents.

    chances, for rules that ask for them (`EngineConfig.verify`): per draft the chances by token that it was drawn from,
    adding up to 1; siblings, drawn without replacement, have the same; None for a draft that was not drawn. Whatever
    was drawn is proposed: how many drafts there are behind a token may depend on that and those before it alone.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[Mapping[int, float] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A weight is this tensor of a checkpoint."""

    checkpoint: Checkpoint
    name: str


def wants_drafts(request: Request) -> bool:
    """What is computed in one step has no use for any."""
    return bool(request.params.speculate) and not request.whole


class DraftSession(Protocol):
    """What a drafter may do with the machine, between the target's run and the next."""

    def run(self, program: str, rows: Sequence[Row], source_rows: Sequence[int] = ()) -> None:
        """One run of a drafter's program over `rows`; source_rows: per token, the row of the exports
        that its feeds read (builder.feed); of a program that has not run there are none.

        Writes caches at the indices of the step's own rows, and behind those that sampled at `lookahead` more, as far
        as the last token but one of the request: nothing else is reserved.
        """

    def seconds(self, rows: int) -> float:
        """That a step of so many rows takes lately; 0 while that is not known."""

    def logits(self, name: str) -> Any:
        """An export [rows, vocabulary] as the sampler reads it (backends/port.py)."""

    def view(self, name: str) -> Any:
        """An export as a numpy float32 array [rows, width], valid until the program that writes it runs again."""


class Drafter(Protocol):
    programs: Mapping[str, Program]  # opened beside "target"; weight names are shared with it when declarations agree
    taps: tuple[str, ...]  # values of the target that have to be exports
    max_draft: int  # most drafts a row may carry
    tail: int  # drafts that recurrent state has to take back; a model that keeps any gets no more of a proposal
    hit_backoff: int  # tokens at the end of a prefix hit that are computed again, so that taps exist
    lookahead: int  # tokens behind the end of a row that samples for which there is room in the caches too

    def tensor(self, weight: Weight) -> Tensor | Elsewhere | None:
        """A weight of the drafter's own, or where it stands; None for those that stand in the target's checkpoint."""

    def serves(self, request: Request) -> bool:
        """The same for as long as the request lives. Rows of others are never shown; a step of none is not slowed."""

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        """After a step in which each of these, all that it serves, went on by such tokens: one Proposal each, none for
        nothing at all. None: it wants to be shown the rows, by `extend` and `propose`. Of such steps it
        may forget what it can read off the requests."""

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None: ...

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        """Per row, in order."""

    def forget(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored."""


DraftMaker = Callable[[Target], Drafter]  # called once, before anything of the target is lowered
