"""Trees of drafts: which nodes, and how many are worth their rows.

A node comes true with the chance that its drafter gives its path; what came true of what was expected before says how
far that is to be believed. A node is worth its row while its chance brings more than the row costs, and the whole
proposal while it brings more than making it costs. Time enters here alone, and never into what is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from octavo.drafters.pace import further
from octavo.drafters.port import DraftSession, Proposal
from octavo.drafters.worth import CAUTION, FADED, KEPT, worthwhile
from octavo.sampling.rules import Chances

MOST_TRUST = 1.25  # a drafter's chances are believed so far at most
FIRST_ACCEPTED, FIRST_NODES = 1.0, 2.0  # of a proposal, before one was seen
FIRST_TRUST = 3.0  # drafts of a request that are believed as those of all requests, before its own were seen
ALL_KEPT = 0.97  # of what was seen of all requests, at each proposal
COOLED = 0.995  # of what a proposal took, at each step that makes none: it may have been a slow moment
SLOW, FORGOT = 4.0, 1.01  # what took more than so many times the quickest is heard as that; which is forgotten as fast
LATELY = 0.95  # of what became of proposals, at each: a few that fail in a row say little


@dataclass(frozen=True, slots=True)
class Tree:
    """Per node its token, its parent (-1: the root), its chance; and what it was drawn from, where nodes are drawn."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    chances: Sequence[float] = ()
    drawn: Sequence[Chances | None] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a tree: the rank-th choice at this depth (from 0) after its parent (-1: the root)."""

    parent: int
    depth: int
    rank: int
    chance: float


def grow(chances: Sequence[Sequence[float]], most: int, least: float = 0.0) -> list[Node]:
    """The likeliest `most` paths above `least`, the likeliest first. chances: per depth those of the choices of each
    rank, falling; a path has their product."""
    nodes: list[Node] = []
    waiting: list[tuple[float, int, int, int]] = []  # -chance, parent, depth, rank

    def offer(parent: int, depth: int, rank: int, before: float) -> None:
        if depth < len(chances) and rank < len(chances[depth]) and before * chances[depth][rank] > least:
            heappush(waiting, (-before * chances[depth][rank], parent, depth, rank))

    offer(-1, 0, 0, 1.0)
    while waiting and len(nodes) < most:
        chance, parent, depth, rank = heappop(waiting)
        nodes.append(Node(parent, depth, rank, -chance))
        offer(parent, depth, rank + 1, nodes[parent].chance if parent >= 0 else 1.0)
        offer(len(nodes) - 1, depth + 1, 0, -chance)
    return nodes


def proposal(tree: Tree) -> Proposal:
    """A tree that never branches is a chain, which has no paths to be gathered and moved."""
    branches = any(parent != place - 1 for place, parent in enumerate(tree.parents))
    return Proposal(tuple(tree.tokens), tuple(tree.parents) if branches else (), tuple(tree.drawn))


def pruned(tree: Tree, nodes: Sequence[int]) -> Tree:
    """Of these nodes alone, the parents of all among them. First the path of first children: as far as a tree begins
    as a chain, its rows cost what a chain's do. Siblings stay in order."""
    kept, line = sorted(nodes), [-1]
    for node in kept:
        if tree.parents[node] == line[-1]:
            line.append(node)
    kept = [*line[1:], *sorted(set(kept) - set(line))]
    places = {-1: -1} | {node: place for place, node in enumerate(kept)}
    return Tree(
        [tree.tokens[node] for node in kept],
        [places[tree.parents[node]] for node in kept],
        [tree.chances[node] for node in kept],
        [tree.drawn[node] for node in kept] if tree.drawn else (),
    )


class TreeWorth:
    """adaptive: False proposes whatever there is, whatever it costs."""

    def __init__(self, *, adaptive: bool = True) -> None:
        self._adaptive = adaptive
        self._trust: dict[str, tuple[float, float]] = {}  # accepted, expected
        self._all = (1.0, 1.0)  # of all requests
        self._chances: dict[str, tuple[float, ...]] = {}  # of what was proposed last
        self._accepted, self._nodes = FIRST_ACCEPTED, FIRST_NODES  # of a proposal, lately
        self._seconds = 0.0  # that making the proposals of a step takes
        self._quickest = 0.0  # of them; 0: none was made, infinite: the first was

    def asks(self, rows: int, session: DraftSession) -> bool:
        """Whether proposals for `rows` requests are worth making."""
        plain = session.seconds(rows)
        if not self._adaptive or plain <= 0:
            return True
        more = session.seconds(rows + round(self._nodes * rows)) - plain
        if self._accepted * plain > CAUTION * (self._seconds + more):
            return True
        self._accepted = FADED * self._accepted + (1 - FADED) * FIRST_ACCEPTED
        self._nodes = FADED * self._nodes + (1 - FADED) * FIRST_NODES
        self._seconds *= COOLED
        return False

    def took(self, seconds: float) -> None:
        """Of the proposals of a step. The first ever touch the drafter's weights, which takes its time: not heard."""
        if not self._quickest:
            self._quickest = inf
            return
        self._quickest = min(seconds, FORGOT * self._quickest)
        self._seconds = (self._seconds + min(seconds, SLOW * self._quickest)) / 2

    def least(self, request_id: str, rows: int, session: DraftSession) -> float:
        """The chance that a node needs at least, as its drafter gives it: what a row costs where rows cost least."""
        plain = session.seconds(rows)
        if not self._adaptive or plain <= 0:
            return 0.0
        price = further(rows, session.seconds) * rows / plain
        return CAUTION * price / max(self._believed(request_id), 1e-6)

    def best(self, named: Sequence[tuple[str, Tree]], rows: int, session: DraftSession) -> list[Tree]:
        """Of each request's tree the nodes that make the most tokens a second in a step of `rows` requests. A parent
        is as likely as its children at least, and stands before them. Nodes that were drawn stay: to leave out some for
        what they are would change the distribution that they are of."""
        if not self._adaptive or session.seconds(rows) <= 0:
            return [pruned(tree, range(len(tree.tokens))) for _, tree in named]
        trust = [self._believed(name) for name, _ in named]
        ranked = [sorted(range(len(tree.tokens)), key=lambda node: -tree.chances[node]) for _, tree in named]
        chances = [
            [min(believed * tree.chances[node], 1.0) for node in order]
            for believed, order, (_, tree) in zip(trust, ranked, named, strict=True)
        ]
        counts, _ = worthwhile(chances, rows, session.seconds)
        return [
            pruned(tree, order if tree.drawn else order[:count])
            for (_, tree), order, count in zip(named, ranked, counts, strict=True)
        ]

    def pays(self, promised: Mapping[str, float], seconds: float, rows: int, session: DraftSession) -> bool:
        """Whether further drafts are worth making, which takes so long. promised: by request, the tokens that would
        come true as the drafter gives it."""
        plain = session.seconds(rows)
        if not self._adaptive or plain <= 0:
            return True
        tokens = sum(self._believed(request_id) * count for request_id, count in promised.items())
        return tokens * plain > CAUTION * rows * seconds

    def _believed(self, request_id: str) -> float:
        accepted, expected = self._trusted(request_id)
        return min(accepted / expected, MOST_TRUST) if expected > 0 else 0.0

    def proposed(self, request_id: str, chances: Sequence[float]) -> None:
        self._chances[request_id] = tuple(chances)

    def hear(self, request_id: str, drafts: int, accepted: int) -> None:
        """What became of the first `drafts` nodes."""
        chances = self._chances.pop(request_id, ())[:drafts]
        before, expected = self._trusted(request_id)
        if not chances:
            self._all = FADED * self._all[0] + 1 - FADED, FADED * self._all[1] + 1 - FADED
            first = self._first()
            self._trust[request_id] = (
                FADED * before + (1 - FADED) * first[0],
                FADED * expected + (1 - FADED) * first[1],
            )
            return
        self._all = ALL_KEPT * self._all[0] + accepted, ALL_KEPT * self._all[1] + sum(chances)
        self._trust[request_id] = KEPT * before + accepted, KEPT * expected + sum(chances)
        self._accepted = LATELY * self._accepted + (1 - LATELY) * accepted
        self._nodes = LATELY * self._nodes + (1 - LATELY) * drafts

    def _trusted(self, request_id: str) -> tuple[float, float]:
        return self._trust.get(request_id) or self._first()

    def _first(self) -> tuple[float, float]:
        accepted, expected = self._all
        return FIRST_TRUST * accepted / expected, FIRST_TRUST

    def forget(self, request_id: str) -> None:
        self._trust.pop(request_id, None)
        self._chances.pop(request_id, None)
