"""Known truths of queues and schedulers, in virtual time."""

import random

import pytest

from octavo.sim.arrival import Arrival
from octavo.sim.replica import Drafts, Replica, Sizes
from octavo.sim.router import router
from octavo.sim.service import Fault, Service, Split
from octavo.types import CacheTensor, KVGroup
from octavo.workload.job import Job

GROUPS = (KVGroup("full", "full", tensors=(CacheTensor("k", 64),)),)


def sizes(**more):
    given = {"groups": GROUPS, "num_blocks": 4096, "block_tokens": 16, "max_model_len": 65536}
    return Sizes(**given | more)


def run(jobs, *, seconds=lambda shape: 0.01, replicas=1, rule="turn", drafts=None, faults=(), split=None, **more):
    made = [Replica(number, sizes(**more), seconds, drafts=drafts) for number in range(replicas)]
    service = Service(made, router(rule, 1000), split=split)
    arrivals = [one if isinstance(one, Arrival) else Arrival(one, number) for number, one in enumerate(jobs)]
    return service.run(arrivals, faults=faults), made


def poisson(rate, count, seed=0, tokens=100, output=1):
    noise, now = random.Random(seed), 0.0
    for _ in range(count):
        now += noise.expovariate(rate)
        yield Job(now, tokens, output)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_prompt_at_a_time_waits_as_a_queue_of_one_server_does(load):
    """M/D/1: D + R D^2 / (2 (1 - R D)) until the first token."""
    taken, rate = 0.1, load / 0.1
    history, _ = run(
        poisson(rate, 12_000), seconds=lambda shape: taken, max_num_seqs=1, enable_prefix_caching=False, num_blocks=16
    )
    mean = sum(journey.ttft for journey in history.journeys) / len(history.journeys)
    assert mean == pytest.approx(taken + rate * taken**2 / (2 * (1 - rate * taken)), rel=0.03)


def test_chunks_bound_the_gap_of_others():
    """A step of at most t tokens costs at most t: however long a prompt comes beside it, no gap is longer."""

    def seconds(shape):
        return 1e-4 * shape.tokens

    jobs = [Job(0.0, 16, 400), Job(0.002, 8000, 1), Job(0.004, 4000, 1)]
    gaps = {}
    for budget in (64, 512):
        history, _ = run(jobs, seconds=seconds, max_num_batched_tokens=budget)
        gaps[budget] = history.journeys[0].worst_gap
        assert gaps[budget] <= 1e-4 * budget + 1e-9
        assert history.journeys[1].ttft >= 1e-4 * 8000 - 1e-9
    assert gaps[64] < gaps[512]


def test_a_run_that_others_computed_is_found():
    shared = ((7, 320), (8, 320))
    jobs = [Job(0.0, 700, 2, shared), Job(10.0, 700, 2, shared), Job(20.0, 700, 2, ((7, 320),))]
    history, _ = run(jobs)
    assert [journey.cached for journey in history.journeys] == [0, 640, 320]


def test_longest_prefix_first_comes_near_the_best_order_of_a_tree():
    """With a cache for one branch, visiting a tree depth first computes each run once; in turn, again and again."""
    branches = [((branch, 320), (100 + branch, 320)) for branch in range(6)]
    deep = [Job(float(n), 656, 1, branches[n // 5]) for n in range(30)]
    wide = [Job(float(n), 656, 1, branches[n % 6]) for n in range(30)]
    cached = []
    for jobs in (deep, wide):
        history, _ = run(jobs, num_blocks=2 * 656 // 16)
        cached.append(sum(journey.cached for journey in history.journeys))
    best = sum(640 for n in range(30) if n % 5)
    assert cached[0] == best
    assert cached[1] < best / 2


def test_a_router_that_knows_prefixes_sends_them_home():
    jobs = [Job(float(n), 656, 1, ((n % 4, 640),)) for n in range(64)]
    cached = {}
    for rule in ("turn", "prefix"):
        history, _ = run(jobs, replicas=3, rule=rule)
        cached[rule] = sum(journey.cached for journey in history.journeys)
    assert cached["prefix"] == 640 * 60
    assert cached["turn"] < cached["prefix"]


def test_drafts_shorten_by_what_is_accepted():
    """(1 - a^(g+1)) / (1 - a) tokens a step."""
    history, [replica] = run([Job(0.0, 16, 8000)], drafts=Drafts(3, 0.6))
    expected = (1 - 0.6**4) / (1 - 0.6)
    assert 8000 / replica.stats.steps == pytest.approx(expected, rel=0.03)
    assert history.journeys[0].tokens == 8000


def test_split_hands_the_cache_over():
    """The first token comes from prefill; the next after the way of the cache, and prompts delay nobody's gaps."""
    prefill = [Replica(0, sizes(), lambda shape: 1e-4 * shape.tokens)]
    decode = [Replica(1, sizes(), lambda shape: 1e-3 * shape.requests, imports=True)]
    service = Service(decode, router("turn", 1), split=Split(prefill, bytes_per_token=128, link=128 * 1000 / 0.25))
    jobs = [Job(0.0, 1000, 50), Job(0.4, 8000, 5)]
    history = service.run(Arrival(job, number) for number, job in enumerate(jobs))
    first, second = history.journeys
    assert first.ttft == pytest.approx(0.1)
    assert first.worst_gap == pytest.approx(0.25 + 1e-3)
    assert [journey.tokens for journey in history.journeys] == [50, 5]
    assert second.reason == "length" and second.ttft == pytest.approx(0.8)


def test_a_fault_slows_and_passes():
    jobs = [Job(0.0, 16, 300)]
    history, _ = run(jobs, faults=[Fault(1.0, 0, 10.0, 0.5)])
    plain, _ = run(jobs)
    assert history.journeys[0].worst_gap == pytest.approx(0.1)
    assert plain.end < history.end < plain.end + 0.6


def test_clients_that_leave_and_requests_that_cannot_be():
    jobs = [
        Arrival(Job(0.0, 100, 1000), 0, abort_after=0.5),
        Arrival(Job(0.1, 70_000, 5), 1),
        Arrival(Job(0.2, 9, 3), 2),
    ]
    history, [replica] = run(jobs)
    assert [journey.reason for journey in history.journeys] == ["abort", "refused", "length"]
    assert history.journeys[0].tokens == pytest.approx(49, abs=2)
    assert replica.scheduler.ledger.pools[0].available == 4096


def test_events_of_one_time_have_an_order():
    """A step that ends now is committed before a client that leaves now: its token counts. What arrives then is seen by
    the step that begins."""
    history, _ = run([Arrival(Job(0.0, 9, 100), 0, abort_after=0.05), Job(0.05, 9, 1)], seconds=lambda shape: 0.025)
    first, second = history.journeys
    assert first.tokens == 2
    assert second.ttft == pytest.approx(0.025)


def test_equal_seeds_give_equal_histories_and_no_clock_is_read(monkeypatch):
    import time

    def forbidden(*_):
        raise AssertionError("a clock was read")

    for name in ("time", "monotonic", "perf_counter", "sleep"):
        monkeypatch.setattr(time, name, forbidden)

    def once():
        jobs = list(poisson(20, 400, tokens=300, output=40))
        history, _ = run(jobs, replicas=2, rule="load", drafts=Drafts(2, 0.5), num_blocks=200)
        return [(j.replica, j.first, j.last, j.tokens, j.cached, j.reason) for j in history.journeys], history.end

    assert once() == once()
