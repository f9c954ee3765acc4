"""EAGLE-1, 2 and 3: a decoder layer that goes on from the target's features and proposes trees (arXiv 2401.15077,
2406.16858, 2503.01840).

Each step the head first goes over what the target has made known (true features, the next token of each), then level by
level over its own drafts: the likeliest few of a level go on, and the likeliest of all are proposed. What is likely is
so under the request's own noise (likely.py): where head and target agree on a distribution they agree on the token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf

from octavo.drafters.drawn import Draws
from octavo.drafters.eagle_files import eagle_shape, spare
from octavo.drafters.eagle_program import FUSE, HEAD, LOGITS, programs
from octavo.drafters.eagle_tree import Growth, Spine, best, spine
from octavo.drafters.folder import HeadFolder
from octavo.drafters.likely import likeliest, width
from octavo.drafters.port import DraftRow, DraftSession, Elsewhere, Proposal
from octavo.drafters.target import Target
from octavo.drafters.tree import Tree, TreeWorth
from octavo.program.ir import Program, Weight
from octavo.request import Request, Row


@dataclass(frozen=True, slots=True)
class Branching:
    """depth: levels. width: drafts of a level that go on, and choices after each. nodes: drafts that are proposed.
    Small, for a processor: a row of the target is far from free."""

    depth: int = 5
    width: int = 3
    nodes: int = 10


SMALL = Branching()
PATIENCE = 48  # steps of a request without drafts


@dataclass(frozen=True, slots=True)
class _Known:
    """Of a request: what the head has gone over in this step, where that begins among the rows of g and x, and its row
    of the logits."""

    spine: Spine
    begin: int
    logits: int

    @property
    def state(self) -> int:
        """Where the root's x stands."""
        return self.begin + len(self.spine.tokens) - 1

    def again(self) -> Spine:
        """From the last entry without a parent on, with rows of g for sources."""
        known, first = self.spine, len(self.spine.tokens) - len(self.spine.parents) - 1
        parents = [parent - first for parent in known.parents]
        sources = list(range(self.begin + first, self.begin + len(known.tokens)))
        return Spine(known.start + first, known.tokens[first:], sources, parents)


class EagleDrafter:
    """Keeps nothing of a request from step to step but how its drafts fared, and how long ago it had any."""

    hit_backoff = 1  # the entry of a prompt's last token holds the token after it: no hit brings that

    def __init__(
        self, folder: HeadFolder, target: Target, branching: Branching = SMALL, *, adaptive: bool = True
    ) -> None:
        """Raises ConfigError, BadFileError for what is no head of this target. adaptive: what pays (tree.py)."""
        shape = eagle_shape(folder, target)
        self.programs: Mapping[str, Program] = programs(shape)
        self.taps = tuple(dict.fromkeys(shape.taps))
        self.max_draft = self.tail = max(branching.nodes, branching.depth)
        self.lookahead = self.max_draft + (branching.depth - 1) * branching.width
        folder.join(self.programs.values(), target.program.weights, spare(shape))
        self._ids = folder.target_ids(shape.draft_vocab, target.model.vocab_size)
        self._folder = folder
        self._branching = branching
        self._draws = Draws(target.config.verify)
        self._limits = target.config.max_num_batched_tokens, target.config.max_logit_rows
        self._worth = TreeWorth(adaptive=adaptive)
        self._known: dict[str, _Known] = {}  # of this step
        self._patience = PATIENCE if adaptive else inf
        self._idle: dict[str, int] = {}  # steps since a request had drafts
        self._asked = False  # whether this step's proposals are worth making
        self._fused = 0  # rows of g
        self._seconds = 0.0  # of a level, lately

    def tensor(self, weight: Weight) -> Elsewhere | None:
        return self._folder.tensor(weight)

    def serves(self, request: Request) -> bool:
        """Also those that want no drafts: others may hit their blocks."""
        return not request.whole

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        return None

    def forget(self, request_id: str) -> None:
        self._worth.forget(request_id)
        self._idle.pop(request_id, None)

    # ---- what the target has made known
    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        self._known.clear()
        plans: list[Row] = []
        sources: list[int] = []
        followed = [row for row in rows if not self._let_go(row)]
        logits, count = 0, sum(1 for row in followed if row.result.token_ids)
        self._asked = count > 0 and self._worth.asks(count, session)
        for row in followed:
            sampled = bool(row.result.token_ids)
            if sampled:
                self._worth.hear(row.request.id, row.row.num_drafts, len(row.result.accepted))
            known = spine(row)
            self._known[row.request.id] = _Known(known, len(sources), logits)
            told = sampled and self._asked
            plans.append(known.row(row.request, logits_from=len(known.tokens) - told))
            sources += known.sources
            logits += told
        if plans:
            session.run(FUSE, plans, sources)
            session.run(HEAD, plans, range(len(sources)))
        self._fused = len(sources)

    def _let_go(self, row: DraftRow) -> bool:
        """Whether the head follows the output of this request no further: for so long no draft of it was worth its row.
        Prompts are always gone over, since others may hit them."""
        request, idle = row.request, self._idle.get(row.request.id, 0)
        if row.row.start < len(request.prompt_ids):
            idle = 0
        elif idle < self._patience:
            idle = idle + 1 if request.params.most_drafts and not row.row.num_drafts else 0
        self._idle[request.id] = idle
        return idle >= self._patience

    # ---- drafts
    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        if not self._asked:
            return [Proposal()] * len(rows)
        begun = time.perf_counter()
        growths = self._growths(session, rows)
        growing = list(growths.values())
        self._expand(session, [(one, -1, self._known[one.request.id].logits) for one in growing], 0)
        for depth in range(1, self._branching.depth):
            growing = self._level(session, growing, len(rows), depth)
        trees = [(name, self._tree(growth)) for name, growth in growths.items()]
        worth = dict(zip(growths, self._worth.best(trees, len(rows), session), strict=True))
        proposals = [self._proposal(row.request.id, worth.get(row.request.id)) for row in rows]
        self._worth.took(time.perf_counter() - begun)
        return proposals

    def _growths(self, session: DraftSession, rows: Sequence[DraftRow]) -> dict[str, Growth]:
        """Where drafts may begin, by request: trees as long as a run has room for them, then chains."""
        tokens, logits = (most - len(rows) for most in self._limits)
        growths: dict[str, Growth] = {}
        for row in rows:
            request, after = row.request, row.result.token_ids
            length, known = request.num_tokens + len(after), self._known.get(request.id)
            if known is None or row.ended or length + 1 >= request.max_total or not request.params.most_drafts:
                continue
            behind = length - len(row.result.accepted) - 1  # the end of the row without its drafts
            limit = max(row.row.start + len(row.row.token_ids), min(behind + self.lookahead, request.max_total - 1))
            least = self._worth.least(request.id, len(rows), session)
            growth = Growth(row, known.spine.end - 1, limit, least, known.state)
            if self._draws.wanted(request):
                growth.nodes = min(self._branching.nodes, request.params.most_drafts)
            again, width = known.again(), self._branching.width
            rerun = len(again.tokens) + self._branching.depth * width
            if rerun <= tokens and width <= logits:
                growth.width, growth.spine = width, again
            if growth.spine.tokens:
                tokens, logits = tokens - rerun, logits - width
            elif known.spine.parents:
                continue  # accepted drafts that are not in their places: no chain goes on from there
            growths[request.id] = growth
        return growths

    def _level(self, session: DraftSession, growing: Sequence[Growth], requests: int, depth: int) -> list[Growth]:
        """Runs the likeliest of the last level and looks what may follow them: those that go on. None when the tokens
        that are likely behind them are not worth the run."""
        for growth in growing:
            growth.choose()
        chosen = [growth for growth in growing if growth.frontier]
        promised = {growth.request.id: growth.promised() for growth in chosen}
        if not chosen or not self._worth.pays(promised, self._seconds, requests, session):
            return []
        begun = time.perf_counter()
        plans: list[Row] = []
        sources: list[int] = []
        asked: list[tuple[Growth, int, int]] = []
        firsts: list[int] = []
        for growth in chosen:
            row, fed = growth.rows(self._fused)
            asked += [(growth, draft, len(asked) + place) for place, draft in enumerate(growth.frontier)]
            firsts.append(len(sources))
            plans.append(row)
            sources += fed
        session.run(HEAD, plans, sources)
        for growth, first in zip(chosen, firsts, strict=True):
            growth.ran(first)
        self._expand(session, asked, depth)
        seconds = time.perf_counter() - begun
        self._seconds = 0.8 * self._seconds + 0.2 * seconds if self._seconds else seconds
        return chosen

    def _expand(self, session: DraftSession, asked: Sequence[tuple[Growth, int, int]], depth: int) -> None:
        """What may follow drafts (-1: the root), each with the row of the logits that say so."""
        if not asked:
            return
        count = width((growth.request for growth, _, _ in asked), self._branching.width)
        found = likeliest(session.logits(LOGITS), [row for _, _, row in asked], count)
        for (growth, draft, _), choices in zip(asked, found, strict=True):
            most = growth.children(self._branching.depth - depth)
            growth.grow(draft, self._draws.pick(choices, growth.row, depth, self._ids, most, depth))

    def _tree(self, growth: Growth) -> Tree:
        most = min(self.max_draft, growth.request.params.most_drafts)
        drafts = growth.drafts[:most] if growth.nodes else best(growth.drafts, most, growth.least)
        return Tree(
            [draft.token for draft in drafts],
            [draft.parent for draft in drafts],
            [exp(draft.chance) for draft in drafts],
            [draft.drawn for draft in drafts] if growth.nodes else (),
        )

    def _proposal(self, name: str, tree: Tree | None) -> Proposal:
        if tree is None:
            return Proposal()
        self._worth.proposed(name, tree.chances)
        return Proposal(tuple(tree.tokens), tuple(tree.parents), tuple(tree.drawn))
