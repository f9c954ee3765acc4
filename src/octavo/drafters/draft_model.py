"""A smaller model of the same tokenizer as drafter: its program in the target's session, with weights and caches of its
own, a token a run.

    index    0 ........ held ........ computed      the last token         drafts
    target   in its cache            |              sampled in this step
    drafter  in its caches  | behind, while it proposes nothing
                            | first run: all that is behind and the last token; then a run for each draft but the last

A block of the target's that is full goes under its key when the step is committed, and whoever hits it gets the
drafter's part of it too: where the drafter has gone over it, which it remembers (prefixes.py). One whose layers see a
window of tokens cannot come late, since blocks behind windows are given back: it goes over every block before that is
full, of whatever request it is. Its bits are a function of the tokens alone, like the target's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from octavo.drafters.drawn import Chain
from octavo.drafters.pace import Pace
from octavo.drafters.port import DraftRow, DraftSession, Elsewhere, Proposal
from octavo.drafters.prefixes import Course, Prefixes
from octavo.drafters.shadow import Shadows, ends
from octavo.drafters.target import Target
from octavo.drafters.worth import Worth
from octavo.errors import ConfigError, UnsupportedError
from octavo.models.registry import program_for
from octavo.program.beside import prefixed
from octavo.program.ir import Program, Weight
from octavo.request import Request, Row
from octavo.types import Vocabulary
from octavo.weights.match import match
from octavo.weights.stated import model_config, tokenizer_of

MOST = 8  # drafts of a row
PREFIX = "draft."
NAME = "draft"
_NOTHING = Proposal()


class ModelDrafter:
    """Made by `open_drafter`."""

    taps: tuple[str, ...] = ()
    max_draft = MOST
    tail = MOST
    hit_backoff = 0
    lookahead = MOST

    def __init__(
        self, program: Program, places: Mapping[str, Elsewhere], target: Target, longest: int, *, adaptive: bool = True
    ) -> None:
        """longest: positions of the drafter."""
        self._punctual = any(group.rule == "window" for group in program.groups)
        config = target.config
        self.programs: Mapping[str, Program] = {NAME: program}
        self._places = places
        self._logits = program.exports[0]
        self._vocab_size = vocab_size = _rows_of_head(program)
        self._shadows = Shadows(vocab_size, target.model.vocab_size, config.threads or 1, config.verify)
        self._worth = Worth(MOST, adaptive=adaptive)
        self._pace = Pace()
        self._longest = longest
        self._block = config.block_tokens
        self._most_tokens, self._most_rows = config.max_num_batched_tokens, config.max_logit_rows
        self._aside = False  # nothing that it could propose would pay
        self._prefixes = Prefixes(config.block_tokens)
        self._courses: dict[str, Course] = {}

    def tensor(self, weight: Weight) -> Elsewhere | None:
        return self._places.get(weight.name)

    def serves(self, request: Request) -> bool:
        """Also those that want no drafts: others may hit their blocks."""
        return not request.whole

    def follow(
        self, session: DraftSession, requests: Sequence[Request], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Proposal] | None:
        return None

    def extend(self, session: DraftSession, rows: Sequence[DraftRow]) -> None:
        """Rows that sample are run in `propose`, with their first draft."""
        due: list[Row] = []
        chunks = [row for row in rows if row.result.finite and not row.result.token_ids]
        for row in rows:
            course = self._course(row.request)
            if course.preemptions != row.request.preemptions:
                self._admit(course, row)
            if course.ran:
                tokens = _tokens_behind(row, course.held)[:-1]  # the last is run in any case: its logits are wanted
                course.held += _agreed(course.ran, tokens)
                course.ran = []
            if row.row.num_drafts or (row.result.token_ids and not self._aside):
                self._worth.hear(row.request.id, row.row.num_drafts, len(row.result.accepted))
        for row in chunks:
            due += self._due(row)
        for pack in self._packs(due):
            session.run(NAME, pack)
        self._settle(chunks)

    def propose(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[Proposal]:
        self._aside = self._worth.hopeless(len(rows), session, self._pace)
        if self._aside and not self._punctual:
            self._settle(rows)
            return [_NOTHING] * len(rows)
        wanted = dict(zip(map(_name, rows), self._counts(session, rows), strict=True))
        first: list[Row] = []
        begun: dict[str, DraftRow] = {}
        room = self._most_tokens  # for what is behind: a long prompt is gone over in several steps
        for row in rows:
            behind = _known(row) - self._course(row.request).held
            if not wanted[_name(row)]:
                first += self._due(row)
            elif behind <= room:
                begun[_name(row)] = row
                first.append(self._first(row))
            elif room:
                first.append(self._part(row, room))
            room = max(room - behind * (wanted[_name(row)] > 0), 0)
        drafts = {name: Chain() for name in begun}
        live = self._run(session, first, begun, drafts)
        while live := [name for name in live if len(drafts[name].tokens) < wanted[name]]:
            steps = [self._next(begun[name], drafts[name].tokens) for name in live]
            live = self._run(session, steps, begun, drafts)
        for name, found in drafts.items():
            course = self._courses[name]
            course.held, course.ran = _known(begun[name]), found.tokens[:-1]
        self._settle(rows)
        return [drafts[_name(row)].proposal() if _name(row) in drafts else _NOTHING for row in rows]

    def forget(self, request_id: str) -> None:
        self._courses.pop(request_id, None)
        self._worth.forget(request_id)
        self._shadows.forget(request_id)

    # ---- how many
    def _counts(self, session: DraftSession, rows: Sequence[DraftRow]) -> list[int]:
        room = [self._room(row) for row in rows]
        names = [_name(row) for row, most in zip(rows, room, strict=True) if most]
        worth = dict(zip(names, self._worth.chain(names, len(rows), session, self._pace), strict=True))
        return [min(most, worth.get(_name(row), 0)) for row, most in zip(rows, room, strict=True)]

    def _room(self, row: DraftRow) -> int:
        """Most drafts: there is no place behind the last token but one of the request, no position behind the drafter's
        last, and nothing behind an end."""
        request, known = row.request, _known(row)
        if not self._shadows.follows(request) or ends(request, row.result.token_ids[-1]):
            return 0
        return max(min(MOST, request.params.most_drafts, request.max_total - 1 - known, self._longest + 1 - known), 0)

    # ---- runs
    def _run(
        self, session: DraftSession, rows: Sequence[Row], begun: Mapping[str, DraftRow], drafts: Mapping[str, Chain]
    ) -> list[str]:
        """Runs rows and adds a draft to each that has logits. Those that may go on."""
        live: list[str] = []
        for pack in self._packs(rows):
            at = time.perf_counter()
            session.run(NAME, pack)
            names = [row.request_id for row in pack if row.sample]
            asked = [(place, begun[name], drafts[name].tokens) for place, name in enumerate(names)]
            found = self._shadows.choose(session.logits(self._logits), asked)
            for name, picked in zip(names, found, strict=True):
                if picked is not None and not ends(begun[name].request, drafts[name].add(picked)):
                    live.append(name)
            self._pace.hear(sum(len(row.token_ids) for row in pack), time.perf_counter() - at)
        return live

    def _first(self, row: DraftRow) -> Row:
        """All that is behind, and the last token: its logits give the first draft."""
        held = self._course(row.request).held
        tokens = self._sound(_tokens_behind(row, held))
        return Row(row.request.id, row.row.slot, held, tokens, len(tokens) - 1, True)

    def _next(self, row: DraftRow, drafts: Sequence[int]) -> Row:
        return Row(row.request.id, row.row.slot, _known(row) + len(drafts) - 1, self._sound(drafts[-1:]), 0, True)

    def _part(self, row: DraftRow, count: int) -> Row:
        """The first of what is behind."""
        course = self._course(row.request)
        begin, tokens = course.held, self._sound(_tokens_behind(row, course.held)[:count])
        course.held += len(tokens)
        return Row(row.request.id, row.row.slot, begin, tokens, len(tokens), False)

    def _due(self, row: DraftRow) -> list[Row]:
        """What is behind, where the step fills a block and that cannot wait."""
        held, end = self._course(row.request).held, min(_computed(row), self._longest)
        if not self._punctual or held >= end // self._block * self._block:
            return []
        return [self._part(row, end - held)]

    def _packs(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Rows that fit into a run, in order; what fits into none goes ahead in parts."""
        pack: list[Row] = []
        tokens = 0
        for whole in rows:
            row, most = whole, self._most_tokens
            while len(row.token_ids) > most:
                yield [Row(row.request_id, row.slot, row.start, row.token_ids[:most], most, False)]
                rest = row.token_ids[most:]
                row = Row(row.request_id, row.slot, row.start + most, rest, row.logits_from - most, row.sample)
            if pack and (tokens + len(row.token_ids) > most or len(pack) == self._most_rows):
                yield pack
                pack, tokens = [], 0
            pack.append(row)
            tokens += len(row.token_ids)
        if pack:
            yield pack

    def _sound(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Ids that only the target has rows for stand in no text; the drafter reads them as another."""
        return tuple(token if token < self._vocab_size else 0 for token in tokens)

    # ---- requests
    def _admit(self, course: Course, row: DraftRow) -> None:
        course.preemptions, course.ran = row.request.preemptions, []
        cached = row.row.start + row.row.no_write
        self._prefixes.admit(course, row.request, cached)
        if self._punctual:
            course.held = cached

    def _settle(self, rows: Sequence[DraftRow]) -> None:
        for row in rows:
            course, computed = self._course(row.request), _computed(row)
            if computed >= (course.filled + 1) * self._block or course.held >= (course.told + 1) * self._block:
                tokens = _tokens_behind(row, len(course.keys) * self._block)
                self._prefixes.settle(course, row.request, tokens, computed)

    def _course(self, request: Request) -> Course:
        course = self._courses.get(request.id)
        if course is None:
            course = self._courses[request.id] = Course()
        return course


def open_drafter(name: str, target: Target, *, adaptive: bool = True) -> ModelDrafter:
    """The model of this name. Raises what errors.py lists for bad names and files, and ConfigError for one that does
    not fit the target."""
    checkpoint = target.beside(name)
    config = model_config(checkpoint)
    longest = min(config.max_position, target.max_model_len)
    program = program_for(config, longest)
    fault = ""
    if "logits" not in program.exports or "logits" not in target.program.exports:
        fault = "an encoder generates nothing"
    elif any(group.rule == "state" for group in program.groups):
        fault = "its layers keep recurrent state, which cannot take drafts back"
    elif not _same(tokenizer_of(target.checkpoint), tokenizer_of(checkpoint)):
        fault = f"its vocabulary is not that of {target.config.model}"
    if fault:
        raise ConfigError(f"speculate: {name} cannot draft: {fault}", param="speculate")
    program = replace(program, exports=("logits",))
    beside = prefixed(program, PREFIX, target.program.groups, slack=target.config.block_tokens + MOST)
    found = match(program.weights, checkpoint, program.spare)
    places = {PREFIX + weight: Elsewhere(checkpoint, source) for weight, source in found.items()}
    return ModelDrafter(beside, places, target, longest, adaptive=adaptive)


def _same(one: Vocabulary, other: Vocabulary) -> bool:
    """Rows of padding aside, which stand in no text."""
    size = min(one.size, other.size)
    tails = (range(size, vocabulary.size) for vocabulary in (one, other))
    return all(one.token_bytes(token) == other.token_bytes(token) for token in range(size)) and not any(
        vocabulary.token_bytes(token) for vocabulary, tail in zip((one, other), tails, strict=True) for token in tail
    )


def _rows_of_head(program: Program) -> int:
    width = program.buffers[program.exports[0]].shape[-1]
    if not isinstance(width, int):
        raise UnsupportedError(f"{program.name}: logits of no fixed width")
    return width


def _name(row: DraftRow) -> str:
    return row.request.id


def _known(row: DraftRow) -> int:
    """Tokens that are known once the step is committed, as far as this row goes."""
    return row.row.start + len(row.row.token_ids) - row.row.num_drafts + len(row.result.token_ids)


def _computed(row: DraftRow) -> int:
    """Tokens in the target's cache once the step is committed: the last of those that were sampled is not."""
    return _known(row) - bool(row.result.token_ids)


def _tokens_behind(row: DraftRow, begin: int) -> list[int]:
    """Tokens from index `begin` to the last known one."""
    end = _known(row) - len(row.result.token_ids)
    known = row.request.tokens(begin, end) if begin < end else []
    return [*known, *row.result.token_ids[max(begin - end, 0) :]]


def _agreed(ran: Sequence[int], tokens: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(ran, tokens, strict=False)) if a != b), min(len(ran), len(tokens)))
