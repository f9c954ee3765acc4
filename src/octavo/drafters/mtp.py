"""The modules of the target's own checkpoint that predict tokens further, as drafter (DeepSeek-V3, GLM-5, Qwen3-Next).

    index      row.start ...... computed - 1      the last token         drafts
    target     h of each, and the token after it  |
    module     first run: (h_i, token i + 1), all of them; the last row gives the first draft
    module k   the same rows: (y of module k - 1, token i + k + 1), the last of them drafts; the last row gives draft k
               then a run for each further draft: (y of the module before, the draft before), modules in turn; from
               round to round of the modules an index on

Entries of module k whose token was a draft are made again in the next step, out of the rows of h that were held for it.
What drafts leave behind the last row is written over too. An entry stands at the index of h: so the last k + 1 entries
of a block are of the request that filled it, and a hit that goes on otherwise reads those as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from octavo.config import EngineConfig
from octavo.drafters.drawn import Chain
from octavo.drafters.mtp_rows import Held, Span, followers, known, known_tokens, offsets
from octavo.drafters.pace import Pace
from octavo.drafters.port import DraftRow, DraftSession, Elsewhere, Proposal
from octavo.drafters.shadow import Shadows, ends
from octavo.drafters.target import Target
from octavo.drafters.worth import Worth
from octavo.errors import ConfigError
from octavo.models.draft import AGAIN, HELD, ROWS, Ends, logits, named, programs
from octavo.models.registry import draft_modules
from octavo.program.ir import Program, Weight
from octavo.request import Request, Row

MOST = 6  # drafts of a row


class MtpDrafter:
    """Made by `module_drafter`, and by mtp_head.py of a module that was trained apart."""

    max_draft = tail = MOST
    lookahead = MOST
    hit_backoff = 1  # a hit that covered the last token but one would leave no h for it

    def __init__(
        self,
        programs: Mapping[str, Program],
        residual: str,
        shadows: Shadows,
        config: EngineConfig,
        tensor: Callable[[Weight], Elsewhere | None] = lambda weight: None,
        *,
        adaptive: bool = True,
    ) -> None:
        """programs: of models/draft.py. residual: what they take of the target. tensor: of weights that the target's
        checkpoint lacks."""
        self.programs = programs
        self.taps: tuple[str, ...] = (residual,)
        self.tensor = tensor
        self._modules = [named(place) for place in range(MOST) if named(place) in programs]
        self._held = Held(len(self._modules) - 1, config.max_num_batched_tokens, config.max_num_seqs)
        self._shadows = shadows
        self._worth = Worth(MOST, adaptive=adaptive)
        self._pace = Pace()
        self._most_rows = config.max_logit_rows
        self._spans: list[Span] = []  # of this step
        self._ran: dict[str, tuple[int, int]] = {}  # request -> (its last row of y, of the logits) in the last run
        self._fed = 0  # rows of h

    def serves(self, request: Request) -> bool:
        """Also those that want no drafts: others may hit their blocks."""
        return not request.whole

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        return None

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        plans: list[Row] = []
        sources: list[int] = []
        fresh: list[tuple[DraftRow, int]] = []
        for row in rows:
            tokens, sampled = followers(row), bool(row.result.token_ids)
            if sampled:
                self._worth.hear(row.request.id, row.row.num_drafts, len(row.result.accepted))
            if not tokens or not row.result.finite:
                self._held.forget(row.request.id)
                continue
            plans.append(_run(row, row.row.start, tokens, len(tokens)))
            sources += [row.begin + offset for offset, _ in zip(offsets(row), tokens, strict=False)]
            fresh.append((row, len(tokens)))
        self._spans, self._fed = [(row, row.row.start, count) for row, count in fresh], len(sources)
        self._ran.clear()
        if not plans:
            return
        session.run(ROWS, plans, sources)
        if len(self._modules) > 1:
            self._spans, runs, gathered = self._held.gather(fresh)
            session.run(HELD, runs, gathered)
            self._fed = len(gathered)
        sampling = {row.request.id for row in rows if row.result.token_ids}
        self._over(session, 0, sampling, {})
        if not sampling:
            for depth in range(1, len(self._modules)):
                self._over(session, depth, (), {})

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        counts = self._counts(session, rows)
        drafts = {row.request.id: Chain() for row in rows}
        wanted = {row.request.id: count for row, count in zip(rows, counts, strict=True)}
        live = self._choose(session, 0, [row for row in rows if wanted[row.request.id]], drafts)
        for depth in range(1, len(self._modules)):
            live = [row for row in live if depth < wanted[row.request.id]]
            self._over(session, depth, [row.request.id for row in live], drafts)
            live = self._choose(session, depth, live, drafts)
        depth = len(self._modules)
        while live := [row for row in live if depth < wanted[row.request.id]][: self._most_rows]:
            begun = time.perf_counter()
            self._further(session, depth, live, drafts)
            live = self._choose(session, depth, live, drafts)
            self._pace.hear(len(self._ran), time.perf_counter() - begun)
            depth += 1
        return [drafts[row.request.id].proposal() for row in rows]

    # ---- runs
    def _over(self, session: DraftSession, depth: int, asked: Iterable[str], drafts: Mapping[str, Chain]) -> None:
        """Runs the module of this depth over all rows of h. asked: whose last row is to give logits."""
        plans: list[Row] = []
        self._ran.clear()
        wanted, place = set(asked), 0
        for row, start, count in self._spans:
            chain = drafts.get(row.request.id)
            tokens = known_tokens(row, start + depth + 1, count, () if chain is None else chain.tokens)
            place += count
            tells = row.request.id in wanted
            if tells:
                self._ran[row.request.id] = place - 1, len(self._ran)
            plans.append(_run(row, start, tokens, count - tells))
        if plans:
            session.run(self._modules[depth], plans, range(place))

    def _further(
        self, session: DraftSession, depth: int, live: Sequence[DraftRow], drafts: Mapping[str, Chain]
    ) -> None:
        """Runs a row of each: the draft before, beside y of the module before."""
        count = len(self._modules)
        turn, place = divmod(depth, count)
        shared = AGAIN in self.programs
        behind = self._fed if (depth > 1 if shared else place == 0) else 0  # rows of the exports before those of y
        steps = [_run(row, known(row) - 2 + turn, drafts[row.request.id].tokens[-1:], 0) for row in live]
        session.run(self._named(depth), steps, [behind + self._ran[row.request.id][0] for row in live])
        self._ran = {row.request.id: (at, at) for at, row in enumerate(live)}

    def _named(self, depth: int) -> str:
        """The program of the draft behind so many."""
        return AGAIN if depth and AGAIN in self.programs else self._modules[depth % len(self._modules)]

    def _choose(
        self, session: DraftSession, depth: int, rows: Sequence[DraftRow], drafts: Mapping[str, Chain]
    ) -> list[DraftRow]:
        """Adds a draft to each of the rows, from the logits of the last run. Those that may go on."""
        live: list[DraftRow] = []
        asked = [(self._ran[row.request.id][1], row, drafts[row.request.id].tokens) for row in rows]
        found = self._shadows.choose(session.logits(logits(self._named(depth))), asked) if asked else ()
        for row, picked in zip(rows, found, strict=True):
            if picked is not None and not ends(row.request, drafts[row.request.id].add(picked)):
                live.append(row)
        return live

    # ---- how many
    def _counts(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[int]:
        """A draft of each module is there in any case."""
        room = [self._room(row) for row in rows]
        names = [row.request.id for row, most in zip(rows, room, strict=True) if most]
        made = len(self._modules)
        worth = dict(zip(names, self._worth.chain(names, len(rows), session, self._pace, made=made), strict=True))
        return [min(most, worth.get(row.request.id, 0)) for row, most in zip(rows, room, strict=True)]

    def _room(self, row: DraftRow) -> int:
        """Most drafts: none behind an end, nor behind the last token but one of the request."""
        request, sampled = row.request, row.result.token_ids
        if request.id not in self._ran or not self._shadows.follows(request) or ends(request, sampled[-1]):
            return 0
        return max(min(MOST, request.params.most_drafts, request.max_total - 1 - known(row)), 0)

    def forget(self, request_id: str) -> None:
        self._worth.forget(request_id)
        self._shadows.forget(request_id)
        self._held.forget(request_id)


def module_drafter(target: Target, *, adaptive: bool = True) -> MtpDrafter:
    """Of the target's own checkpoint. Raises ConfigError for one without such a module."""
    modules = draft_modules(target.model, target.max_model_len)[:MOST]
    folder, shared = target.checkpoint, ends_of(target, target.head_weight)
    names = [module.fc[folder.format == "gguf"] for module in modules]
    if not names or not all(name and folder.find(name) is not None for name in names):
        raise ConfigError(f"speculate: {folder.path} has no module that drafts", param="speculate")
    size, config = target.model.vocab_size, target.config
    shadows = Shadows(size, size, config.threads or 1, config.verify)
    return MtpDrafter(programs(modules, shared), shared.residual, shadows, config, adaptive=adaptive)


def ends_of(target: Target, output: Weight) -> Ends:
    """Raises ConfigError where the target's head does not stand behind one norm of the residual stream."""
    writers = {name: op for op in target.program.ops for name in op.outs}
    norm = writers[target.hidden]
    taken = writers.get(norm.ins[0])
    if norm.kind != "norm" or taken is None or taken.kind != "take":
        raise ConfigError(f"{target.checkpoint.path}: no norm before the head: nothing drafts behind it")
    weights = tuple(target.program.weights[name] for name in norm.weights)
    embedding, scale = target.embedding
    return Ends(taken.ins[0], norm, weights, embedding, scale, output)


def _run(row: DraftRow, start: int, tokens: Sequence[int], logits_from: int) -> Row:
    return Row(row.request.id, row.row.slot, start, tuple(tokens), logits_from, logits_from < len(tokens))
