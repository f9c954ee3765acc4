"""The loop alone, over the real scheduler and a fake machine: faults, closing, stops, sleep, several plans at once."""

import queue
import threading
from collections import deque

import pytest

from octavo.engine.loop import STATS_SECONDS, EngineLoop
from octavo.engine.port import EngineStats
from octavo.engine.wire import Abort, Close, Finish, Submit
from octavo.errors import EngineError, UnsupportedError
from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import Request, RowResult, SamplingParams, StepPlan, StepResult
from octavo.types import KVGroup


class FakeRunner:
    """The next token is the index it stands at. `fail_at`: the number of the finish that breaks."""

    def __init__(self, fail_at=None, finite=True):
        self.fail_at, self.finite = fail_at, finite
        self.known, self.forgotten, self.plans, self.finished, self.closed = {}, [], deque(), 0, 0
        self.most = 0

    def add(self, request):
        self.known[request.id] = request

    def forget(self, request_id):
        self.forgotten.append(request_id)
        del self.known[request_id]

    def launch(self, plan):
        self.plans.append(plan)
        self.most = max(self.most, len(self.plans))

    def finish(self):
        self.finished += 1
        if self.finished == self.fail_at:
            raise RuntimeError("the machine broke")
        plan = self.plans.popleft()
        rows = [
            RowResult(token_ids=(row.start + len(row.token_ids),), finite=self.finite) if row.sample else RowResult()
            for row in plan.rows
        ]
        return StepResult(plan.number, tuple(rows))

    def close(self):
        self.closed += 1


class Rig:
    def __init__(self, *, depth=1, blocks=40, budget=8, runner=None):
        limits = SchedulerLimits(8, budget, 8, 200, depth)
        self.ledger = KVLedger([KVGroup("full", "full")], blocks, 4)
        self.scheduler = Scheduler(limits, self.ledger)
        self.runner = runner or FakeRunner()
        self.updates = []
        self.loop = EngineLoop(self.scheduler, self.runner, self.stats, self.updates.append, depth=depth)

    def stats(self):
        return EngineStats(self.scheduler.num_running, self.scheduler.num_waiting, *(0,) * 8)

    def deltas(self, request_id):
        return [delta for update in self.updates for delta in update.deltas if delta.request_id == request_id]

    def output(self, request_id):
        return [token for delta in self.deltas(request_id) for token in delta.token_ids]

    def ends(self, request_id):
        return [delta.finish_reason for delta in self.deltas(request_id) if delta.finish_reason]

    def free(self):
        pool = self.ledger.pools[0]
        return len(pool.free) + len(pool.idle) == pool.usable


def request(name, length=6, **params):
    return Request(name, tuple(range(100, 100 + length)), SamplingParams(**{"max_tokens": 5, **params}))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_requests_run_to_their_end(depth):
    rig = Rig(depth=depth)
    names = [f"r{i}" for i in range(6)]
    for i, name in enumerate(names):
        rig.loop.post(Submit(request(name, length=5 + 3 * i)))
    while any(not rig.ends(name) for name in names):
        rig.loop.turn()
    for i, name in enumerate(names):
        assert rig.output(name) == list(range(5 + 3 * i, 10 + 3 * i)) and rig.ends(name) == ["length"]
    assert sorted(rig.runner.forgotten) == names and not rig.runner.known
    assert rig.free() and (rig.runner.most > 1) == (depth > 1)


def test_stats_travel_when_requests_come_and_go_and_at_times_between():
    rig, now = Rig(), [0.0]
    rig.loop._clock = lambda: now[0]
    rig.loop.post(Submit(request("a", max_tokens=9)))
    for turn in range(9):
        now[0] += STATS_SECONDS if turn == 4 else 0.001
        rig.loop.turn()
    assert rig.ends("a") == ["length"]
    assert [update.stats is not None for update in rig.updates] == [turn in (0, 4, 8) for turn in range(9)]
    assert rig.updates[-1].stats.running == 0


def test_a_fault_ends_every_stream_and_the_loop():
    rig = Rig(runner=FakeRunner(fail_at=3))
    for name in ("a", "b"):
        rig.loop.post(Submit(request(name, max_tokens=50)))
    rig.loop.run()
    assert rig.ends("a") == rig.ends("b") == ["error"]
    assert rig.deltas("a")[-1].stop_reason == "the machine broke"
    fault = rig.updates[-1].fault
    assert isinstance(fault.error(), EngineError) and "the machine broke" in fault.message
    assert rig.runner.closed == 1


def test_logits_that_are_not_finite_end_one_request():
    rig = Rig(runner=FakeRunner(finite=False))
    rig.loop.post(Submit(request("a")))
    rig.loop.turn()
    assert rig.ends("a") == ["error"] and "not finite" in rig.deltas("a")[-1].stop_reason
    assert rig.updates[-1].fault is None and rig.free()


def test_a_refused_request_says_why():
    rig = Rig(blocks=3)
    rig.loop.post(Submit(request("big", length=20)))
    rig.loop.turn()
    assert rig.ends("big") == ["error"] and "KV cache" in rig.deltas("big")[-1].stop_reason
    assert rig.runner.forgotten == ["big"]


def test_a_request_that_the_runner_refuses_says_why():
    class Choosy(FakeRunner):
        def add(self, request):
            super().add(request)
            raise UnsupportedError("adapter 'a': adapters are not supported")

    rig = Rig(runner=Choosy())
    rig.loop.post(Submit(request("a")))
    rig.loop.turn()
    assert rig.ends("a") == ["error"] and "adapter" in rig.deltas("a")[-1].stop_reason
    assert rig.updates[-1].fault is None and not rig.scheduler.has_work


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("turns", range(7))
def test_abort_at_each_turn_frees_everything(depth, turns):
    rig = Rig(depth=depth, budget=4)
    rig.loop.post(Submit(request("gone", length=10)))
    rig.loop.post(Submit(request("stays", length=10)))
    for _ in range(turns):
        rig.loop.turn()
    rig.loop.post(Abort("gone"))
    rig.loop.post(Abort("gone"))
    rig.loop.post(Abort("never was"))
    while not (rig.ends("stays") and rig.ends("gone")) or rig.scheduler.has_work:
        rig.loop.turn()
    assert rig.ends("gone") == ["abort"]
    assert rig.output("stays") == list(range(10, 15))
    assert rig.free() and not rig.runner.known


def test_a_late_stop_cuts_the_request():
    rig = Rig()
    rig.loop.post(Submit(request("a", max_tokens=50)))
    for _ in range(5):
        rig.loop.turn()
    assert len(rig.output("a")) == 5 and not rig.free()
    rig.loop.post(Finish("a", 2, "stop words"))
    rig.loop.turn()
    assert rig.ends("a") == ["stop"] and rig.deltas("a")[-1].stop_reason == "stop words"
    assert rig.free()
    rig.loop.post(Finish("a", 1, "again"))
    rig.loop.post(Close())
    rig.loop.run()
    assert rig.ends("a") == ["stop"]


@pytest.mark.parametrize("depth", [1, 2])
def test_close_ends_everything_that_is_open(depth):
    rig = Rig(depth=depth)
    for name in ("a", "b", "c"):
        rig.loop.post(Submit(request(name, max_tokens=50)))
    for _ in range(3):
        rig.loop.turn()
    rig.loop.post(Close())
    rig.loop.run()
    assert [rig.ends(name) for name in ("a", "b", "c")] == [["abort"]] * 3
    assert rig.free() and rig.runner.closed == 1 and not rig.runner.known


def test_preemption_with_a_tiny_pool_repeats_and_loses_nothing():
    """T29."""
    rig = Rig(blocks=8)
    for name in ("a", "b", "c"):
        rig.loop.post(Submit(request(name, max_tokens=15)))
    while any(not rig.ends(name) for name in ("a", "b", "c")):
        rig.loop.turn()
    assert rig.scheduler.stats.preemptions >= 1
    assert all(rig.output(name) == list(range(6, 21)) for name in ("a", "b", "c"))


class Inbox(queue.SimpleQueue):
    """Notes of every look whether it waits; `waiting` is set when one does."""

    def __init__(self):
        self.looks, self.waiting = [], threading.Event()

    def get(self, block=True, timeout=None):
        self.looks.append((block, timeout))
        if block:
            self.waiting.set()
        return super().get(block, timeout)


def test_idle_sleeps():
    """Without work the loop waits in its inbox, for as long as it takes, and a command wakes it."""
    rig = Rig()
    inbox = rig.loop._inbox = Inbox()
    thread = threading.Thread(target=rig.loop.run)
    thread.start()
    inbox.waiting.wait()
    assert inbox.looks == [(True, None)] and not rig.updates
    inbox.waiting.clear()
    rig.loop.post(Submit(request("a", max_tokens=2)))
    inbox.waiting.wait()
    assert rig.ends("a") == ["length"]
    assert [timeout for block, timeout in inbox.looks if block] == [None, None]  # before the request and after it
    rig.loop.post(Close())
    thread.join()


def test_a_scheduler_that_stalls_is_a_fault():
    class Stalled(Scheduler):
        def schedule(self, now):
            return StepPlan(0, ())

    rig = Rig()
    rig.loop._scheduler = Stalled(rig.scheduler.limits, rig.ledger)
    rig.loop.post(Submit(request("a")))
    rig.loop.run()
    assert rig.ends("a") == ["error"] and "stalled" in rig.updates[-1].fault.message
