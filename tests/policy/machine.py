"""A scheduler and a fake executor in one hand, for tests that tell a story: step by step, output as it arrives."""

from __future__ import annotations

from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import Request, SamplingParams, StepPlan, TokenDelta
from octavo.types import KVGroup
from policy.fake import EOS, Alone, FakeExecutor
from policy.invariants import check_drained, check_plan, check_state

VOCAB = 50
FULL = (KVGroup("full", "full"),)
STATE = (KVGroup("state", "state"), KVGroup("full", "full"))


def request(name: str, prompt, **fields) -> Request:
    """`prompt`: ids, or how many of a fixed sequence. Fields of SamplingParams may stand among those of Request."""
    ids = tuple(prompt) if not isinstance(prompt, int) else tuple(7 + i % 40 for i in range(prompt))
    names = SamplingParams.__dataclass_fields__.keys() - Request.__dataclass_fields__.keys()
    params = {key: fields.pop(key) for key in list(fields) if key in names}
    params = {"max_tokens": 8, "ignore_eos": True} | params
    return Request(name, ids, SamplingParams(**params), eos_ids=(EOS,), **fields)


class Machine:
    def __init__(
        self,
        blocks: int,
        block_tokens: int = 4,
        *,
        groups=FULL,
        seqs=4,
        tokens=64,
        logits=64,
        longest=64,
        depth=1,
        snapshots=4,
        **keys,
    ) -> None:
        self.groups = groups
        self.ledger = KVLedger(groups, blocks + 1, block_tokens, num_snapshots=snapshots, **keys)
        self.ledger.roots = set()
        self.scheduler = Scheduler(SchedulerLimits(seqs, tokens, logits, longest, depth), self.ledger)
        self.fake = FakeExecutor(groups, blocks + 1, block_tokens, VOCAB, snapshots, self.ledger.lookahead)
        self.requests: dict[str, Request] = {}
        self.alone: dict[str, Alone] = {}
        self.output: dict[str, list[int]] = {}
        self.ends: dict[str, TokenDelta] = {}
        self.plans: list[StepPlan] = []
        self.propose = lambda request, index: ((), ())
        self.faulty = lambda row: False

    @property
    def stats(self):
        return self.scheduler.stats

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.add(each)
            self.requests[each.id] = each
            self.alone[each.id] = Alone(each, self.groups, VOCAB)
            self.output[each.id] = []

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule(0.0)
        if plan:
            check_plan(self.scheduler, plan)
            self.plans.append(plan)
        self.check()
        return plan

    def commit(self, plan: StepPlan) -> list[TokenDelta]:
        deltas = self.scheduler.commit(plan, self.fake.run(plan, self.requests, self.propose, self.faulty))
        for delta in deltas:
            self.hear(delta)
        self.check()
        return deltas

    def check(self) -> None:
        self.ledger.roots |= {chain.root for chain in self.ledger._chains.values()}
        check_state(self.scheduler)
        for group, pool in zip(self.fake.paged, self.ledger.pools, strict=True):
            for block in pool.free:
                self.fake.poison(group, block)
        if self.ledger.states is not None:
            for snapshot in self.ledger.states.pool.free:
                self.fake.snapshots[snapshot] = None

    def hear(self, delta: TokenDelta) -> None:
        assert delta.request_id not in self.ends, "a delta after the last one"
        self.output[delta.request_id] += delta.token_ids
        if delta.finish_reason:
            self.ends[delta.request_id] = delta

    def step(self) -> StepPlan:
        plan = self.schedule()
        if plan:
            self.commit(plan)
        return plan

    def run(self, *requests: Request, steps: int = 500) -> dict[str, list[int]]:
        """To the end, or for `steps` steps."""
        self.add(*requests)
        for _ in range(steps):
            if not self.scheduler.has_work:
                check_drained(self.scheduler)
                break
            self.step()
        return self.output

    def abort(self, name: str) -> TokenDelta | None:
        delta = self.scheduler.abort(name)
        if delta is not None:
            self.hear(delta)
        self.check()
        return delta

    def expect(self, *names: str) -> None:
        """The named requests (all) said what they say alone, to the end."""
        for name in names or self.requests:
            ids, reason, stop = self.alone[name].outputs()
            end = self.ends[name]
            assert (self.output[name], end.finish_reason, end.stop_reason) == (ids, reason, stop)
            assert self.requests[name].output_ids == ids


def first_token(prompt: int, place: int) -> int:
    """What a request with this prompt says at this place of its output."""
    machine = Machine(32)
    return machine.run(request("probe", prompt))["probe"][place]
