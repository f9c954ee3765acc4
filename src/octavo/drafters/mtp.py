"""The module of the target's own checkpoint that predicts a token further, as drafter (DeepSeek-V3, GLM-5, Qwen3-Next).

    index    row.start ...... computed - 1      the last token         drafts
    target   h of each, and the token after it  |
    module   first run: (h_i, token i + 1), all of them; the last row gives the first draft
             then a run for each further draft: (its own y, the draft before), an index on

Entries of the first run are those of true tokens; what drafts leave behind them is written over in the next step. It
keeps nothing of a request. An entry stands at the index of h, with the token after it: so the last entry of a block is
of the request that filled it, and a hit that goes on with another token reads that one as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from octavo.config import EngineConfig
from octavo.drafters.pace import Pace
from octavo.drafters.port import DraftRow, DraftSession, Elsewhere, Proposal
from octavo.drafters.shadow import Shadows, ends
from octavo.drafters.target import Target
from octavo.drafters.worth import Worth
from octavo.errors import ConfigError
from octavo.models.draft import LOGITS, MODULE, ROWS, Ends
from octavo.models.registry import draft_module
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
        self._shadows = shadows
        self._worth = Worth(MOST, adaptive=adaptive)
        self._pace = Pace()
        self._most_rows = config.max_logit_rows
        self._ran: dict[str, tuple[int, int]] = {}  # request -> (its last row of y, of the logits) in the last run
        self._fed = 0  # rows of h

    def serves(self, request: Request) -> bool:
        """Also those that want no drafts: others may hit their blocks."""
        return not request.whole

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        plans: list[Row] = []
        sources: list[int] = []
        self._ran.clear()
        logits = 0
        for row in rows:
            tokens, sampled = _followers(row), bool(row.result.token_ids)
            if sampled:
                self._worth.hear(row.request.id, row.row.num_drafts, len(row.result.accepted))
            if not tokens or not row.result.finite:
                continue
            plans.append(_run(row, row.row.start, tokens, len(tokens) - sampled))
            sources += [row.begin + offset for offset, _ in zip(_offsets(row), tokens, strict=False)]
            if sampled:
                self._ran[row.request.id] = len(sources) - 1, logits
                logits += 1
        self._fed = len(sources)
        if plans:
            session.run(ROWS, plans, sources)
            session.run(MODULE, plans, range(len(sources)))

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        counts = self._counts(session, rows)
        drafts: dict[str, list[int]] = {row.request.id: [] for row in rows}
        wanted = {row.request.id: count for row, count in zip(rows, counts, strict=True)}
        live = self._choose(session, [row for row in rows if wanted[row.request.id]], drafts)
        while live := [row for row in live if len(drafts[row.request.id]) < wanted[row.request.id]][: self._most_rows]:
            begun = time.perf_counter()
            steps = [_run(row, _known(row) - 2 + len(found), found[-1:], 0) for row, found in _with(live, drafts)]
            session.run(MODULE, steps, [self._fed + self._ran[row.request.id][0] for row in live])
            self._ran = {row.request.id: (place, place) for place, row in enumerate(live)}
            live = self._choose(session, live, drafts)
            self._pace.hear(len(steps), time.perf_counter() - begun)
        return [Proposal(tuple(drafts[row.request.id])) for row in rows]

    def _choose(
        self, session: DraftSession, rows: Sequence[DraftRow], drafts: Mapping[str, list[int]]
    ) -> list[DraftRow]:
        """Adds a draft to each of the rows, from the logits of the last run. Those that may go on."""
        live: list[DraftRow] = []
        asked = [(self._ran[row.request.id][1], row, found) for row, found in _with(rows, drafts)]
        for row, token in zip(rows, self._shadows.choose(session.logits(LOGITS), asked), strict=True):
            if token is not None:
                drafts[row.request.id].append(token)
                if not ends(row.request, token):
                    live.append(row)
        return live

    def _counts(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[int]:
        """The first draft of all is there in any case."""
        room = [self._room(row) for row in rows]
        names = [row.request.id for row, most in zip(rows, room, strict=True) if most]
        worth = dict(zip(names, self._worth.chain(names, len(rows), session, self._pace, made=1), strict=True))
        return [min(most, worth.get(row.request.id, 0)) for row, most in zip(rows, room, strict=True)]

    def _room(self, row: DraftRow) -> int:
        """Most drafts: none behind an end, nor behind the last token but one of the request."""
        request, sampled = row.request, row.result.token_ids
        if request.id not in self._ran or not self._shadows.follows(request) or ends(request, sampled[-1]):
            return 0
        return max(min(MOST, request.params.most_drafts, request.max_total - 1 - _known(row)), 0)

    def forget(self, request_id: str) -> None:
        self._worth.forget(request_id)
        self._shadows.forget(request_id)


def module_drafter(target: Target, *, adaptive: bool = True) -> MtpDrafter:
    """Of the target's own checkpoint. Raises ConfigError for one without such a module."""
    module = draft_module(target.model, target.max_model_len)
    folder, shared = target.checkpoint, ends_of(target, target.head_weight)
    named = "" if module is None else module.fc[folder.format == "gguf"]
    if module is None or not named or folder.find(named) is None:
        raise ConfigError(f"speculate: {folder.path} has no module that drafts", param="speculate")
    shadows = Shadows(target.model.vocab_size, target.config.threads or 1)
    return MtpDrafter(module.programs(shared), shared.residual, shadows, target.config, adaptive=adaptive)


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


def _with(rows: Iterable[DraftRow], drafts: Mapping[str, list[int]]) -> Iterable[tuple[DraftRow, list[int]]]:
    return ((row, drafts[row.request.id]) for row in rows)


def _offsets(row: DraftRow) -> list[int]:
    """Rows of the step that stand for true tokens: the known ones, and accepted drafts."""
    return [*range(len(row.row.token_ids) - row.row.num_drafts), *row.result.accepted]


def _followers(row: DraftRow) -> list[int]:
    """The token after each of them, as far as it is known."""
    start, end = row.row.start + 1, row.row.start + len(row.row.token_ids) - row.row.num_drafts
    if row.result.token_ids:
        return [*row.request.tokens(start, end), *row.result.token_ids]
    return row.request.tokens(start, min(end + 1, row.request.num_tokens))


def _known(row: DraftRow) -> int:
    """Tokens that are known once the step is committed."""
    return row.request.num_tokens + len(row.result.token_ids)


def _run(row: DraftRow, start: int, tokens: Sequence[int], logits_from: int) -> Row:
    return Row(row.request.id, row.row.slot, start, tuple(tokens), logits_from, logits_from < len(tokens))
