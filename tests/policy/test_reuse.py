"""Prefix hits and preemption: what is found again, who gives way, and that neither changes a token."""

import pytest

from octavo.policy.scheduler import MAX_PREEMPTIONS
from octavo.types import KVGroup
from policy.machine import FULL, Machine, request

# ---- prefix hits


@pytest.mark.parametrize(("blocks", "start"), [(1, 3), (2, 7), (3, 11)])
def test_a_full_hit_computes_the_last_token_again_without_writing(blocks, start):
    machine = Machine(32)
    machine.run(request("cold", 4 * blocks))
    machine.run(request("warm", 4 * blocks))
    assert machine.output["warm"] == machine.output["cold"]
    (row,) = next(plan for plan in machine.plans if plan.rows[0].request_id == "warm").rows
    assert (row.start, len(row.token_ids), row.no_write, row.sample) == (start, 1, True, True)
    assert machine.ends["warm"].cached_tokens == start and machine.stats.full_hits == 1


def test_a_hit_within_the_prompt_writes_what_follows():
    machine = Machine(32)
    machine.run(request("cold", 8))
    machine.run(request("warm", 9))
    (row,) = next(plan for plan in machine.plans if plan.rows[0].request_id == "warm").rows
    assert (row.start, len(row.token_ids), row.no_write) == (8, 1, False)
    machine.expect()


def test_a_hit_counts_as_computed_at_once():
    machine = Machine(32)
    machine.run(request("cold", 9))
    machine.add(request("warm", 9))
    plan = machine.schedule()
    delta = machine.abort("warm")
    assert (delta.computed, delta.cached_tokens) == (8, 8)
    assert machine.commit(plan) == []


def test_twins_compute_a_prefix_once():
    machine = Machine(32, tokens=14)
    machine.run(request("a", 13), request("b", 13))
    machine.expect()
    assert machine.stats.deferred == 1 and machine.ends["b"].cached_tokens == 12
    assert not any(
        len({row.request_id for row in plan.rows}) == 2 and plan.rows[1].start < 12 for plan in machine.plans
    )


def test_a_waiting_twin_lets_others_pass_and_survives_the_first_ones_abort():
    machine = Machine(32, tokens=4)
    machine.add(request("a", 12), request("b", 12), request("c", 2, salt="c", max_tokens=1))
    machine.step()
    machine.abort("a")
    machine.run()
    machine.expect("b", "c")
    assert machine.ends["b"].cached_tokens == 4


def test_requests_that_generate_the_same_block_do_not_disturb_each_other():
    machine = Machine(32)
    machine.run(request("a", 5), request("b", 5), request("c", 5), request("d", 5, seed=3))
    machine.expect()


def test_all_rows_are_computed_in_pieces_of_the_logit_budget_and_told_once():
    machine = Machine(32, tokens=8, logits=3)
    machine.run(request("cold", 10))
    machine.run(request("a", 10, prompt_logprobs=0))
    told = [row for plan in machine.plans for row in plan.rows if row.request_id == "a" and row.start < 10]
    assert [(row.start, len(row.token_ids), row.num_logits) for row in told] == [
        (0, 3, 3),
        (3, 3, 3),
        (6, 3, 3),
        (9, 1, 1),
    ]
    machine.expect()
    assert machine.ends["a"].cached_tokens == 0


def test_rows_are_told_from_the_first_that_is_scored_and_the_others_come_from_the_cache():
    machine = Machine(32, tokens=8, logits=3)
    machine.run(request("cold", 10))
    machine.run(request("a", 10, prompt_logprobs=0, prompt_logprobs_from=7))
    told = [row for plan in machine.plans for row in plan.rows if row.request_id == "a" and row.start < 10]
    assert [(row.start, row.num_logits) for row in told] == [(4, 3), (9, 1)]
    machine.expect()
    assert machine.ends["a"].cached_tokens == 4


# ---- preemption


def test_the_youngest_is_preempted_and_says_the_same():
    machine = Machine(6)  # each needs 3 blocks at first, 4 in the end
    machine.run(request("old", 9, salt="o"), request("young", 9, salt="y"))
    machine.expect()
    assert (machine.requests["old"].preemptions, machine.requests["young"].preemptions) == (0, 1)
    assert machine.stats.preemptions == 1


def test_the_preempted_computes_prompt_and_output_once_and_finds_its_own_blocks():
    machine = Machine(6)
    machine.run(request("old", 9, salt="o"), request("young", 9, salt="y"))
    young = [row for plan in machine.plans for row in plan.rows if row.request_id == "young"]
    again = next(i for i, row in enumerate(young) if i and row.start <= young[i - 1].start)
    assert young[again].start > 0 and young[again].sample
    assert young[again].start + len(young[again].token_ids) == young[again - 1].start + 2
    assert machine.requests["young"].cached == 0  # what the first admission got


def test_lower_priority_gives_way_before_younger():
    machine = Machine(6)
    machine.run(request("low", 9, salt="l", priority=1), steps=1)
    machine.run(request("high", 9, salt="h"))
    machine.expect()
    assert (machine.requests["low"].preemptions, machine.requests["high"].preemptions) == (1, 0)


def test_a_request_that_a_plan_names_is_not_preempted():
    machine = Machine(4, depth=2, tokens=4)
    machine.add(request("old", 4, salt="o"))
    machine.step()
    machine.step()  # old holds 2 blocks, 6 tokens known
    machine.add(request("young", 8, salt="y"))
    first = machine.schedule()
    assert [row.request_id for row in first.rows] == ["old", "young"]
    second = machine.schedule()
    assert [row.request_id for row in second.rows] == ["young"]
    machine.commit(first)
    machine.commit(second)
    machine.run()
    machine.expect()


def test_nobody_overtakes_the_preempted():
    machine = Machine(6)
    machine.add(request("old", 9, salt="o"), request("young", 9, salt="y"), request("new", 2, salt="n"))
    machine.run(steps=6)
    assert [machine.requests[name].state for name in ("old", "young", "new")] == ["running", "waiting", "waiting"]
    machine.run()
    machine.expect()


def test_a_chunk_shrinks_before_anybody_is_preempted():
    machine = Machine(8, logits=8)
    machine.add(request("old", 24, salt="o", prompt_logprobs=0), request("young", 20, salt="y"))
    assert [len(row.token_ids) for row in machine.step().rows] == [8, 19]
    row = machine.step().rows[0]
    assert (row.request_id, len(row.token_ids), machine.stats.preemptions) == ("old", 4, 0)
    assert len(machine.step().rows[0].token_ids) == 8 and machine.stats.preemptions == 1
    machine.run()
    machine.expect()


def test_all_rows_are_not_asked_for_again_after_preemption():
    machine = Machine(6)
    machine.run(request("old", 9, salt="o"), request("young", 9, salt="y", prompt_logprobs=0))
    machine.expect()
    assert machine.requests["young"].preemptions == 1
    rows = [row for plan in machine.plans for row in plan.rows if row.request_id == "young" and row.start == 0]
    assert [row.num_logits for row in rows] == [9, 1] and len(rows[1].token_ids) > 9


def test_who_was_preempted_often_goes_last_among_the_victims():
    machine = Machine(6)
    tired = request("tired", 9, salt="t")
    tired.preemptions = MAX_PREEMPTIONS
    machine.add(request("old", 9, salt="o"), tired)
    machine.run()
    assert machine.requests["old"].preemptions == 1 and tired.preemptions == MAX_PREEMPTIONS
    fresh = Machine(6)
    almost = request("almost", 9, salt="t")
    almost.preemptions = MAX_PREEMPTIONS - 1
    fresh.run(request("old", 9, salt="o"), almost)
    assert almost.preemptions == MAX_PREEMPTIONS and fresh.requests["old"].preemptions == 0


@pytest.mark.parametrize(
    "group", [FULL, (KVGroup("w", "window", window=6),), (*FULL, KVGroup("w", "window", window=3))]
)
def test_a_pool_just_large_enough_for_one_serves_all(group):
    machine = Machine(5, groups=group)
    machine.run(*(request(name, 11, salt=name) for name in "abcde"), steps=2000)
    machine.expect()


def test_a_window_larger_than_the_pool_limits_the_length_only():
    machine = Machine(3, groups=(KVGroup("w", "window", window=40),))
    machine.run(request("a", 5, max_tokens=None))
    assert machine.requests["a"].max_total == 13
    machine.expect()


def test_patience_with_a_refused_request_starts_anew_with_each_plan():
    machine = Machine(9)
    machine.run(request("a", 9), steps=2)
    for _ in range(2):
        machine.ledger.reserve = lambda request, upto: False
        assert not machine.schedule() and not machine.schedule()
        del machine.ledger.reserve
        machine.step()
    assert machine.stats.preemptions == 0 and machine.stats.stalls == 4
    machine.run()
    machine.expect()


def test_a_refused_running_request_waits_and_in_the_end_gives_way():
    machine = Machine(9)
    machine.run(request("a", 9), steps=2)
    machine.ledger.reserve = lambda request, upto: False
    assert [bool(machine.schedule()) for _ in range(3)] == [False] * 3
    assert machine.stats.stalls == 3 and machine.stats.preemptions == 1
    del machine.ledger.reserve
    machine.run()
    machine.expect()
