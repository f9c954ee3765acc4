"""The life of a few requests through the scheduler, with results made by hand."""

from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import Request, RowResult, SamplingParams, StepResult
from octavo.types import KVGroup


def test_three_requests_run_to_their_length_and_leave_nothing_behind():
    ledger = KVLedger([KVGroup("full", "full")], 9, 4)
    scheduler = Scheduler(SchedulerLimits(2, 5, 8, 64), ledger)
    for name in "abc":
        scheduler.add(Request(name, tuple(range(1, 8)), SamplingParams(max_tokens=6), salt=name))
    output = {name: [] for name in "abc"}
    reasons = []
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        result = StepResult(
            plan.number, tuple(RowResult((100 + row.start + len(row.token_ids),) * row.sample) for row in plan.rows)
        )
        for delta in scheduler.commit(plan, result):
            output[delta.request_id] += delta.token_ids
            reasons += [delta.finish_reason] if delta.finish_reason else []
    assert output == {name: [107, 108, 109, 110, 111, 112] for name in "abc"}
    assert reasons == ["length"] * 3
    assert ledger.pools[0].available == 8
