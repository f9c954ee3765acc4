"""Scheduler: which tokens of which requests a step computes, and what comes of it. It alone moves a request forward.

There are no phases: a request has tokens known and tokens computed, and every step lets the second catch up with the
first within three budgets (tokens, logit rows, requests). Time and results come in as arguments; nothing is read.

    add --> waiting --admit--> running --commit--> finished
               ^                  |                   ^
               '-----preempt------'     abort, finish-'   (held until the last plan that names it is committed)

    index   0 ........ computed ........ planned ........ num_tokens .. + drafts
            in the cache     in a plan          known, not planned
"""

from __future__ import annotations

from bisect import insort
from itertools import islice

from octavo.errors import CapacityError, ContextLengthError, EngineError, RequestError
from octavo.policy.decode import advance, collect
from octavo.policy.kv import KVLedger
from octavo.policy.outcome import append_output, delta, moves, take_drafts
from octavo.policy.queue import WaitingQueue
from octavo.policy.stats import PolicyStats
from octavo.policy.step import Entry, SchedulerLimits, Step
from octavo.request import FinishReason, KVCopy, Request, Row, RowResult, StepPlan, StepResult, TokenDelta

__all__ = ["PolicyStats", "Scheduler", "SchedulerLimits"]

# A request that was preempted this often goes last among the victims.
MAX_PREEMPTIONS = 4
# Waiting requests looked at in one step beyond those that are admitted.
SCAN = 64
# When no running request found a block in this many calls, and no result is to come, the youngest gives way.
STUCK_ROUNDS = 3
MAX_TOKEN_ID = 2**31 - 1
_NO_RESULT = RowResult()


class Scheduler:
    """add, abort, schedule, commit, finish. Not thread-safe: one loop owns it."""

    def __init__(self, limits: SchedulerLimits, ledger: KVLedger, *, stats: PolicyStats | None = None) -> None:
        if min(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_logit_rows, limits.plans_outstanding) < 1:
            raise ValueError(f"every limit is at least 1: {limits}")
        self.limits = limits
        self.ledger = ledger
        self.stats = stats or PolicyStats()
        self.waiting = WaitingQueue()
        self._entries: dict[str, Entry] = {}
        self._running: list[Entry] = []
        self._slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._freed_slots: list[int] = []
        self._plans: list[StepPlan] = []
        self._named: list[list[Entry]] = []  # whom each of them names, row by row
        self._number = 0
        self._order = 0
        self._stuck = 0

    # ---- gauges

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._plans or len(self.waiting))

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    # ---- coming and going

    def add(self, request: Request) -> None:
        """Fills max_total and queues. Raises RequestError (prompt, used id), ContextLengthError, CapacityError."""
        prompt, params = len(request.prompt_ids), request.params
        if request.id in self._entries:
            raise RequestError(f"request id {request.id!r} is in use", param="request_id")
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) > MAX_TOKEN_ID:
            raise RequestError("prompt token ids must be in [0, 2^31)", param="prompt")
        capacity, longest = self.ledger.capacity, self.limits.max_model_len
        floor = prompt + (params.max_tokens != 0)
        if floor > longest:
            raise ContextLengthError(
                f"the prompt has {prompt} tokens and the context length is {longest}: shorten it", param="prompt"
            )
        if prompt > capacity:
            raise CapacityError(
                f"the prompt has {prompt} tokens and the KV cache holds {capacity}: shorten it or raise the cache size",
                param="prompt",
            )
        if request.whole and prompt > self.limits.max_num_batched_tokens:
            raise CapacityError(
                f"the prompt has {prompt} tokens, is computed in one step, and a step has "
                f"{self.limits.max_num_batched_tokens} (max_num_batched_tokens): shorten it or raise that",
                param="prompt",
            )
        wanted = longest if params.max_tokens is None else prompt + params.max_tokens
        # The last token is sampled but never computed: it needs no place in the cache.
        request.max_total = min(wanted, longest, capacity + 1)
        self._order += 1
        self._entries[request.id] = Entry(request, self._order)
        self.waiting.push(request)

    def abort(self, request_id: str) -> TokenDelta | None:
        """Ends a request at any moment; None when it is unknown or has ended."""
        entry = self._entries.get(request_id)
        if entry is None or entry.request.state == "finished":
            return None
        state: str = "in_flight" if entry.outstanding else entry.request.state
        if state == "waiting" and entry.request.preemptions:
            state = "preempted"
        self.stats.aborts[state] += 1
        return self._end(entry, "abort")

    def finish(
        self, request_id: str, at_token: int, reason: FinishReason = "stop", stop_reason: int | str | None = None
    ) -> TokenDelta | None:
        """A stop was found in committed output: only the first `at_token` output tokens count, whatever was committed
        since. None when the request is unknown or has ended: its last delta is out already."""
        entry = self._entries.get(request_id)
        if entry is None or entry.request.state == "finished":
            return None
        request = entry.request
        if not 0 <= at_token <= len(request.output_ids):
            raise EngineError(f"request {request_id}: cannot end at token {at_token} of {len(request.output_ids)}")
        del request.output_ids[at_token:]
        request.computed = min(request.computed, request.num_tokens)
        return self._end(entry, reason, stop_reason=stop_reason)

    # ---- planning

    def schedule(self, now: float) -> StepPlan:
        """The next step, running requests first. An empty plan (false) when nothing can be computed now: it is not
        outstanding and is not committed. `now`: seconds, any origin."""
        if len(self._plans) >= self.limits.plans_outstanding:
            return StepPlan(self._number, ())
        step = Step(self.limits)
        for entry in list(self._running):
            if step.tokens < 1:
                break
            if entry.next is not None and step.logits > 0:
                collect(step, entry, entry.next)
            elif entry.request.state == "running":
                self._plan_running(step, entry)
        self._admit_waiting(step, now)
        if not step.rows:
            if self._running and not self._plans:
                self._stuck += 1
                if self._stuck >= STUCK_ROUNDS:
                    self._preempt(self._running[-1])
            return StepPlan(self._number, ())
        plan = StepPlan(
            self._number,
            tuple(step.rows),
            tuple(step.copies),
            tuple(step.tables),
            tuple(self._freed_slots),
            tuple(step.states),
        )
        self._freed_slots.clear()
        self._plans.append(plan)
        self._named.append(step.entries)
        self._stuck = 0
        self._number += 1
        self.stats.steps += 1
        self.stats.tokens += self.limits.max_num_batched_tokens - step.tokens
        return plan

    def _plan_running(self, step: Step, entry: Entry) -> None:
        request = entry.request
        start, end = request.planned, request.num_tokens
        if start >= end:
            return
        first = self._first_logit(entry, start, end)
        upto = self._upto(step, start, end, first)
        while upto > start and not self.ledger.reserve(request, self.ledger.need(request, upto)):
            shorter = self.ledger.within(request, upto, self.ledger.reach(request))
            if start < shorter < upto:
                upto = shorter
                continue
            victim = self._victim(entry)
            if victim is None:
                self.stats.stalls += 1
                return
            self._preempt(victim)
        if upto > start:
            self._emit(step, entry, start, upto, first)

    def _admit_waiting(self, step: Step, now: float) -> None:
        if step.tokens < 1 or not self._slots:
            return
        for request in list(islice(self.waiting.order(), len(self._slots) + SCAN)):
            if step.tokens < 1 or not self._slots:
                return
            hit = self.ledger.match(request)
            if self.ledger.awaits(request, hit):
                self.stats.deferred += 1
                continue
            entry = self._entries[request.id]
            covered = hit * self.ledger.block_tokens
            end = request.num_tokens
            start = min(covered, end - 1)
            first = self._first_logit(entry, start, end)
            upto = self._upto(step, start, end, first)
            if upto <= start or (request.whole and upto < end):
                return
            upto = self.ledger.admit(request, hit, upto, end)
            if not upto:
                return
            self._admitted(entry, start, now, full_hit=covered > start)
            self._emit(step, entry, start, upto, first, no_write=covered > start)

    def _admitted(self, entry: Entry, start: int, now: float, *, full_hit: bool) -> None:
        request = entry.request
        self.waiting.take(request)
        request.state = "running"
        request.slot = self._slots.pop()
        request.computed = start
        self.stats.lookups += 1
        if start:
            self.stats.hits += 1
            self.stats.full_hits += full_hit
            self.stats.cached_tokens += start
        if not request.preemptions:
            request.cached = start
            request.queued = now - request.arrival
            self.stats.prompt_tokens += len(request.prompt_ids)
        entry.holding = self.ledger.holdings[request.id]
        entry.rank = (int(request.preemptions < MAX_PREEMPTIONS), request.priority, entry.order)
        insort(self._running, entry, key=_rank)

    def _first_logit(self, entry: Entry, start: int, end: int) -> int:
        """Index of the first token in [start, end), all known ones, whose logits are wanted; end when none are."""
        request = entry.request
        if request.prompt_rows and entry.delivered < len(request.prompt_ids):
            return max(start, entry.delivered, request.first_row)
        return end - 1 if end < request.max_total else end

    def _upto(self, step: Step, start: int, end: int, first: int) -> int:
        """How far the budgets allow to compute from `start` on; logits are wanted from `first` on."""
        upto = min(end, start + step.tokens)
        return min(upto, max(first, start) + step.logits) if upto > first else upto

    def _emit(self, step: Step, entry: Entry, start: int, upto: int, first: int, *, no_write: bool = False) -> None:
        """Adds the row: its room is reserved. Drafts follow when it reaches the last known token."""
        request = entry.request
        tokens, logits = upto - start, min(first, upto) - start
        reached = upto == request.num_tokens
        sample = reached and upto < request.max_total
        drafts: tuple[int, ...] = ()
        parents: tuple[int, ...] = ()
        if not reached:
            self.stats.chunks += 1
        elif request.draft_ids:
            drafts, parents = self._drafts(entry, upto, step.tokens - tokens, step.logits - (tokens - logits))
            parents = tuple(tokens + parent for parent in parents)
            request.draft_ids = request.draft_parents = ()
        ids = (*request.tokens(start, upto), *drafts) if tokens > 1 or drafts else (request.token(start),)
        count = len(ids)
        slot = request.slot
        step.rows.append(
            Row(request.id, slot, start, ids, logits, sample, len(drafts), parents, no_write, request.adapter)
        )
        step.tokens -= count
        step.logits -= count - logits
        step.states += self.ledger.advance(request, start, tokens)
        updates = self.ledger.updates(request, slot)
        if updates:
            step.tables += updates
        if entry.copies:
            step.copies += [KVCopy(slot, source, target) for source, target in entry.copies]
            self.stats.copies += len(entry.copies)
            entry.copies = []
        step.entries.append(entry)
        entry.outstanding += 1
        request.planned = start + count

    def _drafts(self, entry: Entry, end: int, tokens: int, logits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As many drafts as what is left of the budgets, the length and the free blocks allow, nobody else paying for
        them. A prefix of a tree is a tree: parents stand before children."""
        request = entry.request
        room = min(len(request.draft_ids), tokens, logits, request.max_total - end - 1)
        reach = self.ledger.reach(request)
        room = min(room, reach - end - (self.ledger.ahead(request) if reach < request.max_total - 1 else 0))
        if room < 1 or not self.ledger.reserve(request, self.ledger.need(request, end + room)):
            room = 0
        self.stats.drafts_dropped += len(request.draft_ids) - room
        return request.draft_ids[:room], request.draft_parents[:room]

    # ---- preemption

    def _victim(self, entry: Entry) -> Entry | None:
        """The youngest running request below `entry` that no plan names."""
        for other in reversed(self._running):
            if other is entry:
                return None
            if not other.outstanding:
                return other
        return None

    def _preempt(self, entry: Entry) -> None:
        """Everything computed is given back (its full blocks may be found again) and the request waits."""
        request = entry.request
        self.ledger.release(request)
        self._leave(entry)
        request.state = "waiting"
        request.planned = request.computed = 0
        request.preemptions += 1
        entry.copies, entry.copies_end = [], 0
        self.stats.preemptions += 1
        self.waiting.push_front(request)

    def _leave(self, entry: Entry) -> None:
        """Off the running list; the slot can be given away in the next plan."""
        self._running.remove(entry)
        entry.next = None
        self._slots.append(entry.request.slot)
        self._freed_slots.append(entry.request.slot)
        entry.request.slot = -1

    # ---- results

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Takes the result of the oldest outstanding plan. Raises EngineError for any other, or a malformed one."""
        if not self._plans or plan.number != self._plans[0].number:
            raise EngineError(f"plan {plan.number} is not the oldest outstanding one")
        if result.number != plan.number or len(result.rows) != len(plan.rows):
            raise EngineError(f"the result of plan {plan.number} does not match it")
        self._plans.pop(0)
        deltas: list[TokenDelta] = []
        plain, prepare = 0, self.ledger.states is None
        for entry, row, given in zip(self._named.pop(0), plan.rows, result.rows, strict=True):
            entry.outstanding -= 1
            if type(given) is int and (short := advance(entry, row, given, prepare=prepare)) is not None:
                deltas.append(short)
                plain += 1
                continue
            outcome = RowResult((given,)) if isinstance(given, int) else given
            if not outcome.finite:
                self.ledger.forget(entry.request)
            if entry.request.state == "finished":
                self.stats.late_results += 1
                if not entry.outstanding:
                    self._discard(entry)
            elif not outcome.finite:
                deltas.append(self._end(entry, "error", stop_reason=outcome.error or None))
            elif row.sample:
                deltas.append(self._sampled(entry, row, outcome))
            else:
                deltas.append(self._computed(entry, row, outcome))
        self.stats.output_tokens += plain
        return deltas

    def _computed(self, entry: Entry, row: Row, outcome: RowResult) -> TokenDelta:
        """A row without output: a chunk, or the end of a request that wants none."""
        request = entry.request
        request.computed = row.start + len(row.token_ids)
        self.ledger.publish(request, request.computed)
        entry.delivered = max(entry.delivered, min(request.computed, len(request.prompt_ids)))
        if request.computed == request.max_total:
            return self._end(entry, "length", outcome=outcome)
        return delta(request, (), outcome)

    def _sampled(self, entry: Entry, row: Row, outcome: RowResult) -> TokenDelta:
        """Output: accepted drafts and one more token, up to the first that ends the request."""
        request, accepted = entry.request, outcome.accepted
        if len(outcome.token_ids) != len(accepted) + 1 or len(accepted) > row.num_drafts:
            raise EngineError(f"request {request.id}: {len(outcome.token_ids)} tokens for {len(accepted)} drafts")
        loose = row.num_drafts or entry.copies_end
        request.computed = firm = row.start + len(row.token_ids) - row.num_drafts + len(accepted)
        entry.delivered = len(request.prompt_ids)
        if loose:
            entry.copies = moves(row, accepted)
            entry.copies_end = entry.copies[-1][0] + 1 if entry.copies else 0
            firm = entry.copies[0][1] if entry.copies else firm
            self.stats.verified(row.num_drafts, len(accepted))
        reason, stop, kept = append_output(request, outcome.token_ids)
        self.stats.output_tokens += len(kept)
        if reason is not None:
            request.computed = min(request.computed, request.num_tokens)
        request.planned = request.computed
        self.ledger.publish(request, min(firm, request.computed))
        if reason is not None:
            return self._end(entry, reason, kept, outcome, stop, row.num_drafts)
        if loose:
            self.ledger.trim(request, max(request.computed, entry.copies_end))
        if outcome.draft_ids:
            take_drafts(request, outcome)
        return delta(request, kept, outcome, row.num_drafts)

    # ---- ending

    def _end(
        self,
        entry: Entry,
        reason: FinishReason,
        tokens: tuple[int, ...] = (),
        outcome: RowResult = _NO_RESULT,
        stop_reason: int | str | None = None,
        drafted: int = 0,
    ) -> TokenDelta:
        """The terminal delta. Blocks and slot are given back once no outstanding plan names them."""
        request = entry.request
        if request.state == "waiting":
            self.waiting.remove(request)
        request.state, request.finish_reason, request.stop_reason = "finished", reason, stop_reason
        self.stats.finished[reason] += 1
        if not entry.outstanding:
            self._discard(entry)
        return delta(request, tokens, outcome, drafted)

    def _discard(self, entry: Entry) -> None:
        if entry.request.slot >= 0:
            self.ledger.release(entry.request)
            self._leave(entry)
        self.ledger.discard(entry.request)
        del self._entries[entry.request.id]


def _rank(entry: Entry) -> tuple[int, int, int]:
    return entry.rank
