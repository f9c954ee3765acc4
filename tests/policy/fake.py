"""An executor without numbers: a token's "output" is a hash of every cache cell it reads *through the block table*.

A cell holds the hash of the token that wrote it, so a stale, foreign, missing or half-copied block changes every later
token. Cells nobody wrote are None and reading one is a violation. A faulty row writes negative cells (its NaN), which
spread to whoever reads them and make logits not finite.

Recurrent state is a hash over everything a request computed, one number a slot. Drafts leave what they computed in
the slot's tail; a snapshot that nobody wrote is None.

`Alone` runs a request by itself over plain lists: what the fake must reproduce, whatever else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.request import Request, Row, RowResult, StateStep, StepPlan, StepResult, TokenLogprobs
from octavo.types import KVGroup

MASK = (1 << 60) - 1
EOS = 0

Contexts = tuple[tuple[int, ...], ...]  # per group: the cells in sight


class Violation(AssertionError):
    """Names the invariant that does not hold."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


def output(contexts: Contexts, token: int, position: int, space: tuple[str, str]) -> int:
    """What a row computes. space: adapter and salt, so that sharing across them shows."""
    return hash((contexts, token, position, len(space[0]), *space[1].encode())) & MASK


def sample(value: int, seed: int, index: int, vocab: int, banned: int) -> int:
    """The token after `value`: `banned` ids from 0 on cannot be chosen."""
    return banned + hash((value, seed, index)) % (vocab - banned)


def advanced(state: int, value: int) -> int:
    """Recurrent state after one more token. What is faulty stays so."""
    return min(state, value) if min(state, value) < 0 else hash((state, value)) & MASK


def first_in_sight(group: KVGroup, position: int) -> int:
    return max(0, position - group.window + 1) if group.rule == "window" else 0


class Alone:
    """Cells and output of one request that has the machine to itself, as far as they were asked for."""

    def __init__(self, request: Request, groups: Sequence[KVGroup], vocab: int) -> None:
        self.request, self.groups, self.vocab = request, groups, vocab
        self.tokens = list(request.prompt_ids)
        self.cells: list[int] = []
        self.states = [0]  # before each token

    def token(self, index: int) -> int:
        """The token at `index`, stops not considered."""
        while len(self.tokens) <= index:
            self.grow()
        return self.tokens[index]

    def grow(self) -> None:
        """Computes up to the last known token and samples the next."""
        request, cells = self.request, self.cells
        while len(cells) < len(self.tokens):
            i = len(cells)
            contexts = tuple(
                (self.states[i],) if group.rule == "state" else tuple(cells[first_in_sight(group, i) :])
                for group in self.groups
            )
            cells.append(output(contexts, self.tokens[i], i, (request.adapter, request.salt)))
            self.states.append(advanced(self.states[i], cells[i]))
        index = len(self.tokens)
        self.tokens.append(sample(cells[-1], request.seed, index, self.vocab, banned(request, index)))

    def outputs(self) -> tuple[list[int], str, int | None]:
        """Output ids, finish reason and stop id of a run to the end, by rules written down here a second time."""
        request, params, ids = self.request, self.request.params, []
        while len(request.prompt_ids) + len(ids) < request.max_total:
            token = self.token(len(request.prompt_ids) + len(ids))
            ids.append(token)
            if len(ids) < params.min_tokens:
                continue
            if token in request.eos_ids and not params.ignore_eos:
                return ids, "stop", None
            if token in params.stop_token_ids:
                return ids, "stop", token
        return ids, "length", None


def banned(request: Request, index: int) -> int:
    """End-of-text cannot be sampled before min_tokens: ids below this are banned."""
    early = index - len(request.prompt_ids) + 1 < request.params.min_tokens
    return 1 if early and not request.params.ignore_eos else 0


Propose = Callable[[Request, int], tuple[tuple[int, ...], tuple[int, ...]]]


class FakeExecutor:
    """cells[group][block][offset]; tables[slot][group]: blocks; owner[slot]: the request whose tables they are.
    lookahead: tokens behind a row that samples at which a drafter writes, once the row has run.
    state[slot], tail[slot], snapshots: of all state groups together; base[slot]: index of the tail's first token."""

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int,
        block_tokens: int,
        vocab: int,
        num_snapshots: int = 1,
        lookahead: int = 0,
    ) -> None:
        self.lookahead = lookahead
        self.groups, self.block_tokens, self.vocab = tuple(groups), block_tokens, vocab
        self.cells: list[list[list[int | None]]] = [
            [[None] * block_tokens for _ in range(num_blocks)] for _ in self.groups
        ]
        self.paged = [number for number, group in enumerate(groups) if group.rule != "state"]
        self.stateful = len(self.paged) < len(groups)
        self.state: dict[int, int] = {}
        self.tail: dict[int, list[int]] = {}
        self.base: dict[int, int] = {}
        self.snapshots: list[int | None] = [None] * (num_snapshots + 1)
        self.tables: dict[int, list[list[int]]] = {}
        self.owner: dict[int, str] = {}
        self.tags = self.number = 0
        self.detected: dict[int, set[int]] = {}  # plan number -> bad cells behind its rows that are not finite

    def poison(self, group: int, block: int) -> None:
        self.cells[group][block] = [None] * self.block_tokens

    def run(
        self,
        plan: StepPlan,
        requests: dict[str, Request],
        propose: Propose,
        faulty: Callable[[Row], bool] = lambda row: False,
    ) -> StepResult:
        self.number = plan.number
        self.detected[plan.number] = set()
        for slot in plan.freed_slots:
            self.tables.pop(slot, None)
            self.owner.pop(slot, None)
            self.state.pop(slot, None)
        for row in plan.rows:
            if self.owner.setdefault(row.slot, row.request_id) != row.request_id:
                raise Violation("I15", f"slot {row.slot} of {row.request_id} still belongs to {self.owner[row.slot]}")
        for update in plan.tables:
            table = self.tables.setdefault(update.slot, [[] for _ in self.groups])[update.group]
            if update.first > len(table):
                raise Violation("I5", f"slot {update.slot}: a gap before entry {update.first}")
            table[update.first : update.first + len(update.blocks)] = update.blocks
        for copy in plan.copies:
            for group in self.paged:
                self._write(copy.slot, group, copy.target, self._read(copy.slot, group, copy.source))
            if self.stateful:
                tail, base = self.tail[copy.slot], self.base[copy.slot]
                tail[copy.target - base] = tail[copy.source - base]
        if len(plan.states) != len(plan.rows) * self.stateful:
            raise Violation("I14", f"{len(plan.states)} steps of state for {len(plan.rows)} rows")
        for row, step in zip(plan.rows, plan.states, strict=False):
            self._restore(row, step)
        for row, step in zip(plan.rows, plan.states, strict=False):
            self._replay(row, step)
        steps = plan.states or (StateStep(),) * len(plan.rows)
        return StepResult(
            plan.number,
            tuple(
                self._row(row, step, requests[row.request_id], propose, faulty(row))
                for row, step in zip(plan.rows, steps, strict=True)
            ),
        )

    # ---- recurrent state

    def _restore(self, row: Row, step: StateStep) -> None:
        if step.restore:
            value = self.snapshots[step.restore]
            if value is None:
                raise Violation("I14", f"{row.request_id} starts from snapshot {step.restore}, which nobody wrote")
            self.state[row.slot] = value
        elif row.start == 0:
            self.state[row.slot] = 0
        if row.slot not in self.state:
            raise Violation("I14", f"{row.request_id} goes on at token {row.start} without state")

    def _replay(self, row: Row, step: StateStep) -> None:
        """The tail's accepted drafts enter the state."""
        tail = self.tail.get(row.slot, []) if step.replay else []
        if step.replay > len(tail) or (step.replay and self.base[row.slot] != row.start - step.replay):
            raise Violation("I14", f"{row.request_id} replays {step.replay} of {len(tail)} drafts at {row.start}")
        for count, value in enumerate(tail[: step.replay], 1):
            self._advance(row.slot, value, count, step)

    def _advance(self, slot: int, value: int, count: int, step: StateStep) -> None:
        self.state[slot] = advanced(self.state[slot], value)
        for after, snapshot in step.snapshots:
            if after == count:
                self.snapshots[snapshot] = self.state[slot]

    # ---- cells

    def _read(self, slot: int, group: int, index: int) -> int:
        table = self.tables[slot][group]
        block = index // self.block_tokens
        if block >= len(table):
            raise Violation("I5", f"slot {slot} has no block for token {index}")
        value = self.cells[group][table[block]][index % self.block_tokens]
        if value is None:
            raise Violation("I14", f"slot {slot} reads token {index} of block {table[block]}, which nobody wrote")
        return value

    def _write(self, slot: int, group: int, index: int, value: int) -> None:
        table = self.tables.get(slot, [[]] * len(self.groups))[group]
        block = index // self.block_tokens
        if block >= len(table) or table[block] == 0:
            raise Violation("I5", f"slot {slot} writes token {index} without a block")
        self.cells[group][table[block]][index % self.block_tokens] = value

    def _span(self, slot: int, group: int, first: int, end: int) -> list[int]:
        """Cells of tokens [first, end), by whole blocks."""
        size = self.block_tokens
        begin = first // size
        table = self.tables.get(slot, [[]] * len(self.groups))[group]
        if -(-end // size) > len(table):
            raise Violation("I5", f"slot {slot} has no block for token {end - 1}")
        found: list[int | None] = []
        for block in table[begin : -(-end // size)]:
            found += self.cells[group][block]
        found = found[first - begin * size : end - begin * size]
        if None in found:
            raise Violation("I14", f"slot {slot} reads a cell of tokens [{first}, {end}) that nobody wrote")
        return found

    # ---- rows

    def _row(self, row: Row, step: StateStep, request: Request, propose: Propose, faulty: bool) -> RowResult | int:
        tag = 0
        if faulty:
            self.tags += 1
            tag = -self.tags
        known = len(row.token_ids) - row.num_drafts
        paths = self._paths(row, known)
        values: list[int] = []
        spans: list[list[int]] = [
            self._span(row.slot, group, first_in_sight(self.groups[group], row.start), row.start)
            for group in self.paged
        ]
        begins = [first_in_sight(self.groups[group], row.start) for group in self.paged]
        for offset, token in enumerate(row.token_ids):
            value = self._value(row, request, offset, token, known, paths, values, spans, begins)
            value = tag or value
            values.append(value)
            if offset < known:
                for span in spans:
                    span.append(value)
                if self.stateful:
                    self._advance(row.slot, value, step.replay + offset + 1, step)
            if row.no_write and offset == 0:
                self._check_written(row, value)
                continue
            for group in self.paged:
                self._write(row.slot, group, row.start + offset, value)
        self.tail[row.slot], self.base[row.slot] = values[known:], row.start + known
        bad = [value for value in values[row.logits_from :] if value < 0]
        if bad:
            self.detected[self.number].update(bad)
            return RowResult(finite=False)
        return self._outcome(row, request, known, paths, values, propose)

    def _value(self, row, request, offset, token, known, paths, values, spans, begins) -> int:
        """The output of one token: what it sees of each group is the committed prefix, then its own path."""
        path = paths[offset - known] if offset >= known else None
        position = row.start + (offset if path is None else known + len(path) - 1)
        contexts: list[tuple[int, ...]] = []
        lowest, rest = 0, iter(zip(spans, begins, strict=True))
        for group in self.groups:
            if group.rule == "state":
                state = self.state[row.slot]
                for ancestor in () if path is None else path[:-1]:
                    state = advanced(state, values[ancestor])
                contexts.append((state,))
                lowest = min(lowest, state)
                continue
            span, begin = next(rest)
            seen = span if path is None else span + [values[ancestor] for ancestor in path[:-1]]
            seen = seen[first_in_sight(group, position) - begin :]
            contexts.append(tuple(seen))
            if self.tags and seen:
                lowest = min(lowest, min(seen))
        if lowest < 0:
            return lowest
        return output(tuple(contexts), token, position, (row.adapter, request.salt))

    @staticmethod
    def _paths(row: Row, known: int) -> list[list[int]]:
        """Per draft: the offsets of its ancestors among the drafts and its own, in depth order."""
        paths: list[list[int]] = []
        for i in range(row.num_drafts):
            parent = row.parents[i] if row.parents else known + i - 1
            if not known - 1 <= parent < known + i:
                raise Violation("I14", f"draft {i} of {row.request_id} hangs on offset {parent}")
            paths.append([*(paths[parent - known] if parent >= known else []), known + i])
        return paths

    def _check_written(self, row: Row, value: int) -> None:
        for group in self.paged:
            cell = self._read(row.slot, group, row.start)
            if cell != value and value >= 0 and cell >= 0:
                raise Violation("I6", f"{row.request_id}: token {row.start} computed again differs from the cache")

    def _look_ahead(self, row: Row, request: Request) -> None:
        """A drafter's own cells stand beside these: its last draft is the token before the last of the request."""
        end = row.start + len(row.token_ids)
        most = min(end + self.lookahead, request.max_total - 1) if request.params.speculate else end
        for group in self.paged:
            table = self.tables[row.slot][group]
            for index in range(end, most):
                if index // self.block_tokens >= len(table) or table[index // self.block_tokens] == 0:
                    raise Violation("I19", f"{request.id} looks ahead to token {index}, which has no block")

    def _outcome(
        self, row: Row, request: Request, known: int, paths: list[list[int]], values: list[int], propose: Propose
    ) -> RowResult | int:
        prompt = len(request.prompt_ids)
        prompt_rows = ()
        if request.prompt_rows:
            first, end = row.start + row.logits_from, min(row.start + known, prompt - 1)
            prompt_rows = tuple(TokenLogprobs(((i + 1, 0.0, 1),)) for i in range(first, end))
        if not row.sample:
            return RowResult(prompt_logprobs=prompt_rows)
        if row.logits_from > known - 1:
            raise Violation("I14", f"{row.request_id} samples without logits")
        tokens, accepted, at, index = [], [], known - 1, row.start + known
        while True:
            token = sample(values[at], request.seed, index, self.vocab, banned(request, index))
            tokens.append(token)
            index += 1
            step = next((p[-1] for p in paths if row.token_ids[p[-1]] == token and parent_of(p, known) == at), None)
            if step is None:
                break
            accepted.append(step)
            at = step
        self._look_ahead(row, request)
        drafts, parents = propose(request, index)
        if silent(request):
            if not (accepted or prompt_rows or drafts):
                return tokens[0]
            return RowResult(tuple(tokens), tuple(accepted), (), prompt_rows, True, drafts, parents)
        logprobs = tuple(TokenLogprobs(((token, 0.0, 1),)) for token in tokens)
        return RowResult(tuple(tokens), tuple(accepted), logprobs, prompt_rows, True, drafts, parents)


def silent(request: Request) -> bool:
    """Asks for no log-probabilities: a row that brings one token and nothing else is then an int."""
    return (len(request.prompt_ids) + request.seed) % 2 == 0


def parent_of(path: list[int], known: int) -> int:
    return path[-2] if len(path) > 1 else known - 1
