"""What an EAGLE head grows for one request in one step: rows of its program, drafts, and which of them are proposed.

Entry i of the head's cache holds the feature of token i beside token i + 1. The *root* is the entry of the last token
that the target has computed; the token sampled after it is known, and drafts stand behind that.

    chain   each draft is a row behind the one before: nothing else is computed again
    tree    attention gathers the path of a row inside one run, so every level runs anew from the last entry without a
            parent on; that costs rows of one layer, not of the target

Accepted drafts of a tree stand where their siblings left them until the next plan's copies move them, here as in the
target: rows from there to the root take part in every run as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log

from octavo.drafters.drawn import Picked
from octavo.drafters.port import DraftRow
from octavo.request import Request, Row
from octavo.sampling.rules import Chances


@dataclass(frozen=True, slots=True)
class Draft:
    """parent: among the drafts, -1 for the root. depth: from 1. chance: logarithm of that of the whole path. drawn:
    from what, where drafts are drawn."""

    token: int
    parent: int
    depth: int
    chance: float
    drawn: Chances | None = None


@dataclass(slots=True)
class Spine:
    """Entries from `start` on with the token of each; the last `len(parents)` of them are of a tree (offsets, as in
    request.Row). sources: row of the feature of each."""

    start: int
    tokens: list[int]
    sources: list[int]
    parents: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def row(self, request: Request, logits_from: int) -> Row:
        return _row(request, self.start, tuple(self.tokens), logits_from, tuple(self.parents))


def spine(row: DraftRow) -> Spine:
    """All entries that the step made known. Sources: step rows of the target. Drafts that were not accepted but stand
    between those that were are entries of no meaning, and so is a last one that will have no next token."""
    request, plan, result = row.request, row.row, row.result
    known = len(plan.token_ids) - plan.num_drafts
    upto = plan.start + known
    after = list(result.token_ids[:1]) or request.tokens(upto, upto + 1) or [0]
    found = Spine(plan.start, [*plan.token_ids[1:known], *after], [])
    path = dict(zip(result.accepted, result.token_ids[1:], strict=True))
    above = known - 1
    for offset in range(known, max(path, default=above) + 1):
        found.tokens.append(path.get(offset, 0))
        found.parents.append(above)
        above = offset if offset in path else above
    if len(path) == len(found.parents):
        found.parents = []
    found.sources = [row.begin + offset for offset in range(len(found.tokens))]
    return found


@dataclass(slots=True)
class Growth:
    """Of one row. limit: entries for which there is room. least: the chance that a draft needs. spine: what every
    level of a tree runs again, with rows of g for sources; nothing for a chain. first, state: rows of the head's last
    run where this request's began, and where the x stands that drafts of the root, or the next of a chain, go on from.
    """

    row: DraftRow
    root: int  # entry
    limit: int
    least: float
    state: int
    width: int = 1  # drafts of a level that go on
    nodes: int = 0  # drafts that are drawn at most, of which one of a level goes on; 0: they are not drawn
    spine: Spine = field(default_factory=lambda: Spine(0, [], []))
    first: int = 0
    drafts: list[Draft] = field(default_factory=list)
    running: list[int] = field(default_factory=list)  # drafts that have been run, in the order of rows
    frontier: list[int] = field(default_factory=list)  # drafts of the next run whose next tokens it tells

    @property
    def request(self) -> Request:
        return self.row.request

    def depth(self, draft: int) -> int:
        return self.drafts[draft].depth if draft >= 0 else 0

    def grow(self, parent: int, picked: Picked) -> None:
        """Tokens that may follow a draft (-1: the root)."""
        above, depth = self.drafts[parent].chance if parent >= 0 else 0.0, self.depth(parent) + 1
        self.drafts += [
            Draft(token, parent, depth, above + logprob, picked.chances) for token, logprob in picked.choices
        ]

    def children(self, levels: int) -> int:
        """Drafts after each of the frontier, where so many levels are to come. Those that are drawn are all proposed:
        they share what is left of the nodes."""
        if not self.nodes:
            return self.width
        return min(self.width, -((len(self.drafts) - self.nodes) // levels))

    def choose(self) -> None:
        """The best of the last level are the next to run, if there is room and they are worth it."""
        request, depth, floor = self.request, self.depth(len(self.drafts) - 1), _log(self.least)
        ends = () if request.params.ignore_eos else request.eos_ids
        level = [number for number, draft in enumerate(self.drafts) if draft.depth == depth and draft.token not in ends]
        most = 1 if self.nodes else self.width
        best = sorted(level, key=lambda number: -self.drafts[number].chance)[:most]
        begin = self.spine.end if self.spine.tokens else self.root + 1
        room = max(self.limit - begin - len(self.running), 0)
        self.frontier = sorted(number for number in best[:room] if self.drafts[number].chance > floor)

    def promised(self) -> float:
        """Tokens that may come true behind the frontier: of its chances, what the last level kept of those before."""
        likely = sum(exp(self.drafts[number].chance) for number in self.frontier)
        above = {self.drafts[number].parent for number in self.frontier}
        before = sum(exp(self.drafts[number].chance) if number >= 0 else 1.0 for number in above)
        return likely * min(likely / before, 1.0)

    def rows(self, states: int) -> tuple[Row, list[int]]:
        """The next run's row and its sources. states: rows of g, which stand before those of x."""
        if not self.spine.tokens:
            (draft,) = self.frontier
            start = self.root + 1 + len(self.running)
            return _row(self.request, start, (self.drafts[draft].token,), 0), [states + self.state]
        base = len(self.spine.tokens)
        fresh = [*self.running, *self.frontier]
        place = {draft: base + number for number, draft in enumerate(fresh)}
        parents, sources = list(self.spine.parents), list(self.spine.sources)
        for draft in fresh:
            parent = self.drafts[draft].parent
            parents.append(place.get(parent, base - 1))
            sources.append(states + (self.first + place[parent] if parent >= 0 else self.state))
        tokens = (*self.spine.tokens, *(self.drafts[draft].token for draft in fresh))
        begin = len(tokens) - len(self.frontier)
        return _row(self.request, self.spine.start, tokens, begin, tuple(parents)), sources

    def ran(self, first: int) -> None:
        """The frontier has been run, in rows of that run from `first` on."""
        self.running += self.frontier
        self.first = first
        self.state = first + max(len(self.spine.tokens) - 1, 0)


def best(drafts: Sequence[Draft], most: int, least: float) -> list[Draft]:
    """The likeliest, at most so many, each with a chance above `least`, with parents among themselves. A parent is no
    less likely than its children and was found before them: what is left is a tree in order."""
    worth = [number for number, draft in enumerate(drafts) if draft.chance > _log(least)]
    chosen = sorted(sorted(worth, key=lambda number: (-drafts[number].chance, number))[:most])
    place = {number: at for at, number in enumerate(chosen)} | {-1: -1}
    return [replace(drafts[number], parent=place[drafts[number].parent]) for number in chosen]


def _row(request: Request, start: int, tokens: tuple[int, ...], begin: int, parents: tuple[int, ...] = ()) -> Row:
    return Row(request.id, request.slot, start, tokens, begin, False, len(parents), parents)


def _log(chance: float) -> float:
    return log(chance) if chance > 0 else -inf
