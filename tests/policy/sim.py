"""A seeded run of the scheduler over the fake executor: arrivals, aborts, late stops, tiny pools, refused allocations,
faulty rows, several plans outstanding. Every invariant is checked after every step; outputs are compared with `Alone`.

`simulate(seed)` returns its report or raises Violation. The same seed gives the same trace.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from random import Random

from octavo.errors import CapacityError, ContextLengthError
from octavo.policy.kv import KeyChain, KVLedger
from octavo.policy.scheduler import MAX_PREEMPTIONS, PolicyStats, Scheduler, SchedulerLimits
from octavo.request import Request, SamplingParams, StepPlan, StepResult, TokenDelta
from octavo.types import KVGroup
from policy.fake import EOS, Alone, FakeExecutor, Violation, silent
from policy.invariants import check_drained, check_plan, check_state, require

VOCAB = 24
GROUPS = (
    (KVGroup("full", "full"),),
    (KVGroup("full", "full"),),
    (KVGroup("full", "full"),),
    (KVGroup("full", "full"), KVGroup("window", "window", window=5)),
    (KVGroup("window", "window", window=3), KVGroup("full", "full")),
    (KVGroup("window", "window", window=4),),
    (KVGroup("state", "state"), KVGroup("full", "full")),
    (KVGroup("full", "full"), KVGroup("state", "state"), KVGroup("window", "window", window=5)),
    (KVGroup("state", "state"),),
)


class FaultyLedger(KVLedger):
    """Refuses an allocation now and then; a refusal, its own or the pools', must change nothing (I8)."""

    def __init__(self, *args, random: Random, refuse: float, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.random, self.refuse, self.refused = random, refuse, 0
        self.roots: set[bytes] = set()
        self.admitting = False
        self.deferred: set[str] = set()

    def awaits(self, request: Request, hit: int) -> bool:
        awaits = super().awaits(request, hit)
        if awaits:
            self.deferred.add(request.id)
        return awaits

    def chain(self, request: Request) -> KeyChain:
        chain = super().chain(request)
        self.roots.add(chain.root)
        return chain

    def state(self) -> object:
        states = self.states
        all_pools = self.pools if states is None else [*self.pools, states.pool]
        pools = [(tuple(p.refs), len(p.free), tuple(p.idle), len(p._by_key)) for p in all_pools]
        standings = () if states is None else (len(states.standings), len(states.computing))
        return pools, len(self.holdings), len(self._computing), standings

    def _refuses(self) -> bool:
        refuses = not self.admitting and self.refuse > 0 and self.random.random() < self.refuse
        self.refused += refuses
        return refuses

    def reserve(self, request: Request, upto: int) -> bool:
        if self._refuses():
            return False
        before = self.state()
        done = super().reserve(request, upto)
        require(done or self.state() == before, "I8", "a refused reservation left something behind")
        return done

    def admit(self, request: Request, hit: int, upto: int, whole: int) -> int:
        if self._refuses():
            return 0
        before = self.state()
        self.admitting = True
        done = super().admit(request, hit, upto, whole)
        self.admitting = False
        require(done or self.state() == before, "I8", "a refused admission left something behind")
        return done


@dataclass
class Case:
    """One request, what it would say alone, and what arrived."""

    request: Request
    alone: Alone
    got: list[int] = field(default_factory=list)
    prompt_rows: list[int] = field(default_factory=list)
    final: TokenDelta | None = None
    cut: int | None = None


@dataclass
class Report:
    seed: int
    plans: int
    requests: int
    refused: int
    rejected: int
    max_preemptions: int
    trace: int
    stats: PolicyStats


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.seed = seed
        self.groups = rng.choice(GROUPS)
        self.block_tokens = rng.choice((1, 2, 2, 3, 4, 4))
        self.longest = rng.randint(10, 36)
        usable = max(1, int(self.longest * rng.choice((0.6, 1.0, 1.1, 1.5, 2.5)) / self.block_tokens))
        self.depth = rng.choice((1, 1, 2, 4))
        snapshots, every = rng.choice((1, 2, 3, 6)), rng.choice((0, 0, 1, 4, 8))
        lookahead = Random(~seed).choice((0, 0, 1, 2, 3, 5, 9))  # apart, so that it moves no other choice
        self.ledger = FaultyLedger(
            self.groups,
            usable + 1,
            self.block_tokens,
            enable_prefix_caching=rng.random() < 0.9,
            hit_backoff=rng.choice((0, 0, 0, 1, 2)),
            lookahead=lookahead,
            num_snapshots=snapshots,
            snapshot_every=every,
            random=rng,
            refuse=rng.choice((0.0, 0.0, 0.05, 0.15)),
        )
        limits = SchedulerLimits(
            rng.randint(1, 6),
            rng.choice((1, 2, 3, 5, 8, 16, 64)),
            rng.choice((1, 2, 3, 8, 64)),
            self.longest,
            self.depth,
        )
        self.scheduler = Scheduler(limits, self.ledger)
        self.fake = FakeExecutor(self.groups, usable + 1, self.block_tokens, VOCAB, snapshots, lookahead)
        self.nan = rng.choice((0.0, 0.0, 0.01, 0.03))
        self.abort_rate, self.finish_rate = rng.choice((0.0, 0.02, 0.1)), rng.choice((0.0, 0.03, 0.1))
        self.drafter = rng.choice(("none", "none", "chain", "noisy", "tree"))
        self.templates = [[rng.randrange(VOCAB) for _ in range(self.longest)] for _ in range(3)]
        self.cases: dict[str, Case] = {}
        self.live: dict[str, Case] = {}
        self.past: list[Request] = []
        self.pipeline: list[tuple[StepPlan, StepResult | None]] = []
        self.detected: set[int] = set()
        self.poisoned: list[set[int]] = [set() for _ in self.ledger.groups]
        self.trace = self.idle_rounds = self.rejected = self.plans = self.minted = 0

    def run(self, steps: int) -> Report:
        while self.plans < steps:
            self.events()
            self.move()
        self.nan = self.ledger.refuse = 0.0
        rounds = 0
        bound = 100 + 20 * sum(case.request.max_total for case in self.live.values())
        while self.scheduler.has_work:
            self.move()
            rounds += 1
            require(rounds < bound, "I11", "the rest does not drain")
        require(not self.live, "I16", f"no last word for {sorted(self.live)}")
        check_drained(self.scheduler)
        most = max((case.request.preemptions for case in self.cases.values()), default=0)
        counts = (self.plans, len(self.cases), self.ledger.refused, self.rejected, most, self.trace)
        return Report(self.seed, *counts, self.scheduler.stats)

    # ---- what callers do

    def events(self) -> None:
        rng = self.rng
        while len(self.live) < 2 or (len(self.live) < 9 and rng.random() < 0.25):
            self.arrive()
        if rng.random() < self.abort_rate:
            self.hear(self.scheduler.abort(rng.choice(list(self.live))))
        elif rng.random() < self.finish_rate:
            case = rng.choice(list(self.live.values()))
            case.cut = rng.randint(0, len(case.request.output_ids))
            self.hear(self.scheduler.finish(case.request.id, case.cut, "stop", "stop string"))
        self.settle()

    def arrive(self) -> None:
        request = self.mint()
        capacity, prompt = self.ledger.capacity, len(request.prompt_ids)
        fits = prompt + (request.params.max_tokens != 0) <= self.longest and prompt <= capacity
        try:
            self.scheduler.add(request)
        except (ContextLengthError, CapacityError):
            require(not fits, "I13", f"{request.id} was refused and fits")
            self.rejected += 1
            return
        require(fits, "I13", f"{request.id} was queued and never fits")
        require(prompt <= request.max_total <= min(self.longest, capacity + 1), "I13", "max_total")
        self.cases[request.id] = self.live[request.id] = Case(request, Alone(request, self.groups, VOCAB))

    def mint(self) -> Request:
        rng = self.rng
        self.minted += 1
        if self.past and rng.random() < 0.35:  # the next turn of an old talk, or the same again
            old = rng.choice(self.past)
            prompt = [*old.prompt_ids, *old.output_ids[: rng.choice((0, 0, 99))]]
        else:
            prompt = rng.choice(self.templates)[: rng.randint(1, self.longest)]
        prompt = prompt[: self.longest + 1] + [rng.randrange(VOCAB) for _ in range(rng.choice((0, 0, 1, 3)))]
        if rng.random() < 0.3:
            prompt = prompt[: max(1, len(prompt) // self.block_tokens * self.block_tokens)]
        most = rng.choice((None, 0, 1, 3, 8, 8, 20))
        params = SamplingParams(
            max_tokens=most,
            min_tokens=rng.randint(0, min(most or 0, 6)) if rng.random() < 0.3 else 0,
            stop_token_ids=(rng.randrange(VOCAB),) if rng.random() < 0.2 else (),
            ignore_eos=rng.random() < 0.5,
            speculate=self.minted % 4 > 0,
            prompt_logprobs=0 if rng.random() < 0.1 else None,
            prompt_logprobs_from=(0, 1, len(prompt) * 2 // 3)[self.minted % 3],
        )
        return Request(
            f"r{self.minted}",
            tuple(prompt),
            params,
            seed=rng.choice((1, 1, 2)),
            eos_ids=(EOS,),
            tenant=rng.choice("ab"),
            salt=rng.choice(("", "", "", "s")),
            adapter=rng.choice(("", "", "", "s")),
            priority=rng.choice((0, 0, 0, 1)),
            arrival=float(self.minted),
        )

    def propose(self, request: Request, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Drafts after token `index` - 1: right, partly wrong, or a tree with the right path somewhere in it."""
        rng = self.rng
        if self.drafter == "none" or index >= request.max_total or rng.random() < 0.2:
            return (), ()
        alone = self.cases[request.id].alone
        right = [alone.token(index + i) for i in range(min(rng.randint(1, 4), request.max_total - index))]
        if self.drafter == "chain":
            return tuple(right), ()
        if self.drafter == "noisy":
            return tuple(token if rng.random() < 0.7 else rng.randrange(VOCAB) for token in right), ()
        tokens: list[int] = []
        parents: list[int] = []
        tip = -1
        for token in right:
            for _ in range(rng.choice((0, 1, 1, 2))):
                tokens.append((token + rng.randint(1, VOCAB - 1)) % VOCAB)
                parents.append(rng.choice((tip, tip, rng.randint(-1, len(parents) - 1))))
            tokens.append(token)
            parents.append(tip)
            tip = len(tokens) - 1
        return tuple(tokens), tuple(parents)

    # ---- one move of the machine

    def move(self) -> None:
        if len(self.pipeline) < self.depth and (not self.pipeline or self.rng.random() < 0.7):
            self.schedule()
        else:
            self.commit()
        if self.rng.random() < 0.5:
            self.execute()
        self.poison()
        check_state(self.scheduler)

    def schedule(self) -> None:
        running = ((name, case.request) for name, case in self.live.items() if case.request.state == "running")
        seated = {name: request.preemptions for name, request in running}
        self.ledger.deferred.clear()
        fenced = {name for name, entry in self.scheduler._entries.items() if entry.outstanding}
        plan = self.scheduler.schedule(float(self.plans))
        self.trace = hash((self.trace, plan))
        self.check_victims(seated, fenced)
        if not plan:
            if not self.pipeline and self.scheduler.has_work:
                self.idle_rounds += 1
                require(self.idle_rounds < (60 if self.ledger.refuse else 6), "I11", "work and no progress")
            return
        self.idle_rounds = 0
        self.plans += 1
        check_plan(self.scheduler, plan)
        for number, row in enumerate(plan.rows):
            if row.request_id not in seated:
                restore = plan.states[number].restore if plan.states else 0
                self.check_admission(self.live[row.request_id], row.start, restore)
        self.pipeline.append((plan, None))

    def check_victims(self, seated: dict[str, int], fenced: set[str]) -> None:
        """I12: who was preempted was the youngest that no plan named; it may be back already."""
        entries = self.scheduler._entries
        gone = {name for name, before in seated.items() if entries[name].request.preemptions > before}
        kept = [entries[name].rank for name in seated.keys() - fenced - gone]
        for name in seated:
            if entries[name].request.state == "waiting":
                require(name not in fenced, "I9", f"{name} was preempted under a plan")
                require(all(rank < entries[name].rank for rank in kept), "I12", f"{name} was not the youngest")

    def check_admission(self, case: Case, start: int, restore: int) -> None:
        """I6: what the hit gave is what computing would give. I12: nobody of the same line was overtaken."""
        request, size = case.request, self.block_tokens
        needed = request.first_row if request.prompt_rows else start
        require(start <= needed, "I6", f"{request.id} needs row {needed} and took a hit of {start}")
        if start:
            case.alone.token(request.num_tokens)
        if self.fake.stateful:
            state = self.fake.snapshots[restore] if restore else 0
            same = state == case.alone.states[start] or (state is not None and state < 0)
            require(bool(restore) == bool(start) and same, "I6", f"{request.id} starts from another state at {start}")
        for group, table in zip(self.fake.paged, self.ledger.holdings[request.id].tables, strict=True):
            for index in range(start):
                block = table.blocks[index // size]
                want = case.alone.cells[index]
                cell = self.fake.cells[group][block][index % size] if block else want
                same = cell == want or (cell is not None and cell < 0)
                require(same, "I6", f"{request.id} hit a block with other contents at token {index}")
        if request.preemptions:
            return
        for name, other in self.live.items():
            rival = other.request
            line = (rival.state, rival.preemptions, rival.priority, rival.tenant)
            if line == ("waiting", 0, request.priority, request.tenant) and rival.arrival < request.arrival:
                require(name in self.ledger.deferred, "I12", f"{name} was overtaken by {request.id}")

    def execute(self) -> None:
        """Runs the oldest plan that has not run."""
        for i, (plan, result) in enumerate(self.pipeline):
            if result is None:
                requests = {row.request_id: self.cases[row.request_id].request for row in plan.rows}
                result = self.fake.run(plan, requests, self.propose, lambda row: self.rng.random() < self.nan)
                self.pipeline[i] = (plan, result)
                return

    def commit(self) -> None:
        if self.pipeline[0][1] is None:
            self.execute()
        plan, result = self.pipeline.pop(0)
        for delta in self.scheduler.commit(plan, result):
            news = delta.token_ids or delta.finish_reason or delta.prompt_logprobs or delta.computed
            require(bool(news), "I16", "an empty delta")
            self.hear(delta)
        self.settle()
        detected = self.fake.detected.pop(plan.number)
        if not detected:
            return
        self.detected |= detected
        if self.ledger.states is not None:
            pool = self.ledger.states.pool
            bad = {snapshot for snapshot in pool.idle if self.fake.snapshots[snapshot] in self.detected}
            require(not bad, "I6", f"snapshots {bad} are known to be bad and can be found")
        for group, pool in zip(self.fake.paged, self.ledger.pools, strict=True):
            for block in range(1, pool.num_blocks):
                bad = pool.keys[block] and not self.detected.isdisjoint(self.fake.cells[group][block])
                require(not bad, "I6", f"block {block} is known to be bad and can be found")

    def poison(self) -> None:
        """Free blocks hold what nobody may read."""
        for place, (group, pool) in enumerate(zip(self.fake.paged, self.ledger.pools, strict=True)):
            free = set(pool.free)
            for block in free - self.poisoned[place]:
                self.fake.poison(group, block)
            self.poisoned[place] = free
        if self.ledger.states is not None:
            for snapshot in self.ledger.states.pool.free:
                self.fake.snapshots[snapshot] = None

    # ---- what comes out

    def hear(self, delta: TokenDelta | None) -> None:
        require(delta is not None, "I16", "a live request was ended without a last word")
        case = self.cases[delta.request_id]
        require(case.final is None, "I16", f"{delta.request_id} speaks after its end")
        case.got += delta.token_ids
        spoken = [logprobs.entries[0][0] for logprobs in delta.logprobs]
        require(
            spoken == ([] if silent(case.request) else list(delta.token_ids)), "I14", "logprobs and tokens part ways"
        )
        case.prompt_rows += [logprobs.entries[0][0] for logprobs in delta.prompt_logprobs]
        self.trace = hash((self.trace, delta.token_ids, delta.request_id))
        if delta.finish_reason is not None:
            case.final = delta

    def settle(self) -> None:
        for name in [name for name, case in self.live.items() if case.final is not None]:
            self.check_case(self.live.pop(name))

    def check_case(self, case: Case) -> None:
        """I14: the output is what the request says alone."""
        request, final = case.request, case.final
        require(self.scheduler.abort(request.id) is None, "I16", f"{request.id} ended twice")
        ids, reason, stop = case.alone.outputs()
        require(case.got == ids[: len(case.got)], "I14", f"{request.id}: {case.got}, alone {ids}")
        require(request.preemptions <= MAX_PREEMPTIONS + 12, "I12", f"{request.preemptions} preemptions")
        self.past = [*self.past[-5:], request]
        if case.cut is not None:
            require(request.output_ids == ids[: case.cut], "I14", f"{request.id} was not cut at {case.cut}")
            require((final.finish_reason, final.stop_reason) == ("stop", "stop string"), "I16", "wrong reason")
            return
        require(request.output_ids == case.got, "I14", f"{request.id}: the stream is not the output")
        if final.finish_reason in ("stop", "length"):
            end = (case.got, final.finish_reason, final.stop_reason)
            require(end == (ids, reason, stop), "I14", f"{request.id}: {end}, alone {(ids, reason, stop)}")
            rows = list(range(request.first_row + 1, len(request.prompt_ids))) if request.prompt_rows else []
            require(case.prompt_rows == rows, "I14", f"{request.id}: prompt rows {case.prompt_rows}")


def simulate(seed: int, steps: int = 200) -> Report:
    return Simulation(seed).run(steps)


def main(first: int, last: int) -> None:
    begin = time.perf_counter()
    for seed in range(first, last):
        try:
            simulate(seed)
        except Violation as fault:
            print(seed, fault)
    print(f"{(time.perf_counter() - begin) / (last - first) * 1e3:.1f} ms a seed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
