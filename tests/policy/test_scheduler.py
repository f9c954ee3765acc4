"""The scheduler's rules one at a time: admission, budgets, chunks, hits, preemption, drafts, stops, ends."""

import pytest

from octavo.errors import CapacityError, ContextLengthError, EngineError, RequestError
from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import RowResult, StepResult
from policy.machine import FULL, Machine, first_token, request


def rows(plan):
    return [(row.request_id, row.start, len(row.token_ids)) for row in plan.rows]


# ---- admission


def test_limits_below_one_are_refused():
    for field in range(4):
        limits = [4, 4, 4, 64, 1]
        limits[field if field < 3 else 4] = 0
        with pytest.raises(ValueError, match="at least 1"):
            Scheduler(SchedulerLimits(*limits), KVLedger(FULL, 9, 4))


@pytest.mark.parametrize(
    ("prompt", "most", "error", "words"),
    [
        ([], 1, RequestError, "empty"),
        ([-1], 1, RequestError, r"\[0, 2\^31\)"),
        ([2**31], 1, RequestError, r"\[0, 2\^31\)"),
        ([5, -1], 1, RequestError, r"\[0, 2\^31\)"),
        ([2**31, 5], 1, RequestError, r"\[0, 2\^31\)"),
        (20, 1, ContextLengthError, "20 tokens and the context length is 20"),
        (21, 0, ContextLengthError, "21 tokens and the context length is 20"),
        (17, None, CapacityError, "17 tokens and the KV cache holds 16"),
    ],
)
def test_what_never_fits_is_refused_with_its_numbers(prompt, most, error, words):
    machine = Machine(4, longest=20)
    with pytest.raises(error, match=words):
        machine.add(request("a", prompt, max_tokens=most))
    assert not machine.scheduler.has_work


def test_whole_requests_are_one_row_or_wait():
    """Never in chunks, never from the cache; one that no step could hold is refused with the numbers."""
    machine = Machine(40, tokens=10)
    with pytest.raises(CapacityError, match=r"11 tokens, is computed in one step, and a step has 10"):
        machine.add(request("long", 11, max_tokens=0, whole=True))
    for name, length in (("a", 6), ("b", 7), ("c", 3), ("d", 10)):
        machine.add(request(name, length, max_tokens=0, whole=True))
    seen = []
    while machine.scheduler.has_work:
        plan = machine.scheduler.schedule(0.0)
        seen.append(rows(plan))
        result = StepResult(plan.number, tuple(RowResult(embedding=b"v") for _ in plan.rows))
        deltas = machine.scheduler.commit(plan, result)
        assert [delta.embedding for delta in deltas] == [b"v"] * len(plan.rows)
        assert all(row.num_logits == 0 for row in plan.rows)
    assert seen == [[("a", 0, 6)], [("b", 0, 7), ("c", 0, 3)], [("d", 0, 10)]]
    assert machine.stats.chunks == machine.stats.cached_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "most", "blocks", "total"),
    [
        (5, 3, 9, 8),
        (5, None, 9, 20),
        (5, 99, 9, 20),
        (5, None, 4, 17),
        (16, 9, 4, 17),
        (19, None, 9, 20),
        (20, 0, 9, 20),
    ],
)
def test_the_length_is_clamped_to_context_and_cache(prompt, most, blocks, total):
    machine = Machine(blocks, longest=20)
    each = request("a", prompt, max_tokens=most)
    machine.run(each)
    assert each.max_total == total and machine.ends["a"].finish_reason == "length"
    assert len(machine.output["a"]) == total - prompt
    machine.expect()


def test_the_largest_token_id_is_accepted():
    machine = Machine(4)
    machine.add(request("a", [2**31 - 1, 0]))
    assert machine.scheduler.num_waiting == 1


def test_an_id_in_use_is_refused_until_the_last_plan_that_names_it():
    machine = Machine(8)
    machine.add(request("a", 4))
    with pytest.raises(RequestError, match="'a' is in use"):
        machine.scheduler.add(request("a", 3))
    plan = machine.schedule()
    machine.abort("a")
    with pytest.raises(RequestError, match="'a' is in use"):
        machine.scheduler.add(request("a", 3))
    machine.commit(plan)
    machine.ends.clear()
    machine.run(request("a", 3))
    machine.expect()


# ---- plans and budgets


def test_running_first_then_waiting_within_the_token_budget():
    machine = Machine(32, tokens=6)
    machine.add(request("a", 4, salt="a"), request("b", 9, salt="b"), request("c", 2, salt="c"))
    assert rows(machine.step()) == [("a", 0, 4), ("b", 0, 2)]
    assert rows(machine.step()) == [("a", 4, 1), ("b", 2, 5)]
    assert rows(machine.step()) == [("a", 5, 1), ("b", 7, 2), ("c", 0, 2)]
    machine.run()
    machine.expect()
    assert machine.stats.chunks == 2


def test_a_budget_of_one_token_serves_everybody():
    machine = Machine(32, tokens=1, logits=1)
    machine.run(request("a", 5), request("b", 7))
    machine.expect()
    assert {plan.num_tokens for plan in machine.plans} == {1}


def test_logit_rows_are_a_budget_of_their_own():
    machine = Machine(32, tokens=64, logits=1)
    machine.add(request("a", 3, salt="a"), request("b", 3, salt="b"))
    assert rows(machine.step()) == [("a", 0, 3), ("b", 0, 2)]  # b's last token has no logit row left
    assert rows(machine.step()) == [("a", 3, 1)]
    machine.run()
    machine.expect()


def test_no_more_requests_than_seats():
    machine = Machine(32, seqs=2)
    machine.add(*(request(name, 3, salt=name) for name in "abc"))
    assert [row.slot for row in machine.step().rows] == [0, 1]
    assert (machine.scheduler.num_running, machine.scheduler.num_waiting) == (2, 1)
    machine.run()
    machine.expect()
    assert {row.slot for plan in machine.plans for row in plan.rows} == {0, 1}


def test_a_row_says_what_it_computes():
    machine = Machine(32, tokens=3)
    machine.add(request("a", 4, max_tokens=3, adapter="lora"))
    (first,) = machine.step().rows
    (second,) = machine.step().rows
    (third,) = machine.step().rows
    assert (first.start, first.token_ids, first.logits_from, first.sample, first.adapter) == (
        0, (7, 8, 9), 3, False, "lora"
    )  # fmt: skip
    assert (second.start, second.token_ids, second.logits_from, second.sample) == (3, (10,), 0, True)
    assert (third.start, third.token_ids, third.logits_from) == (4, (machine.output["a"][0],), 0)
    assert not any(row.no_write or row.num_drafts or row.parents for row in (first, second, third))


def test_freed_slots_are_told_once_with_the_next_plan():
    machine = Machine(32, seqs=1)
    machine.run(request("a", 3, max_tokens=1), request("b", 3, max_tokens=1, salt="b"))
    assert [plan.freed_slots for plan in machine.plans] == [(), (0,)]


def test_plans_are_numbered_and_empty_ones_take_no_number():
    machine = Machine(32)
    assert not machine.scheduler.schedule(0.0)
    machine.run(request("a", 3))
    assert [plan.number for plan in machine.plans] == list(range(8))
    assert machine.stats.steps == 8 and machine.stats.tokens == 3 + 7


def test_no_more_plans_than_may_be_outstanding():
    machine = Machine(32, depth=2, tokens=2)
    machine.add(request("a", 7))
    plans = [machine.schedule() for _ in range(3)]
    assert [rows(plan) for plan in plans] == [[("a", 0, 2)], [("a", 2, 2)], []]
    assert machine.scheduler.has_work


def test_a_decode_row_waits_for_its_token():
    machine = Machine(32, depth=4)
    machine.add(request("a", 4), request("b", 4, salt="b"))
    first = machine.schedule()
    assert not machine.schedule()
    machine.commit(first)
    assert rows(machine.schedule()) == [("a", 4, 1), ("b", 4, 1)]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_changes_no_output(depth):
    machine = Machine(12, depth=depth, tokens=3, seqs=3)
    machine.add(*(request(name, 9, salt=name) for name in "abcd"))
    outstanding = []
    while machine.scheduler.has_work:
        plan = machine.schedule()
        if plan:
            outstanding.append(plan)
        if len(outstanding) == depth or not plan:
            machine.commit(outstanding.pop(0))
    machine.expect()


# ---- results


def test_commits_come_in_plan_order():
    machine = Machine(32, depth=2, tokens=2)
    machine.add(request("a", 7))
    first, second = machine.schedule(), machine.schedule()
    with pytest.raises(EngineError, match="plan 1 is not the oldest"):
        machine.scheduler.commit(second, StepResult(1, (RowResult(),)))
    machine.commit(first)
    with pytest.raises(EngineError, match="plan 0 is not the oldest"):
        machine.scheduler.commit(first, StepResult(0, (RowResult(),)))
    machine.commit(second)
    with pytest.raises(EngineError, match="plan 1 is not the oldest"):
        machine.scheduler.commit(second, StepResult(1, (RowResult(),)))


@pytest.mark.parametrize(
    "result", [StepResult(1, (RowResult((1,)),)), StepResult(0, ()), StepResult(0, (RowResult(),) * 2)]
)
def test_a_result_of_another_shape_is_refused(result):
    machine = Machine(32)
    machine.add(request("a", 3))
    plan = machine.schedule()
    with pytest.raises(EngineError, match="result of plan 0"):
        machine.scheduler.commit(plan, result)


@pytest.mark.parametrize("outcome", [RowResult(), RowResult((1, 2)), RowResult((1, 2), (1,)), RowResult((), (1,))])
def test_a_sampled_row_brings_one_token_more_than_accepted_drafts(outcome):
    machine = Machine(32)
    machine.add(request("a", 3))
    with pytest.raises(EngineError, match="request a:"):
        machine.scheduler.commit(machine.schedule(), StepResult(0, (outcome,)))


@pytest.mark.parametrize(("drafts", "parents"), [((1, 2), (-1,)), ((1, 2), (-1, 1)), ((1,), (-2,)), ((1, 2), (0, 0))])
def test_parents_that_make_no_tree_are_refused(drafts, parents):
    machine = Machine(32)
    machine.add(request("a", 3))
    outcome = RowResult((1,), draft_ids=drafts, draft_parents=parents)
    with pytest.raises(EngineError, match="draft parents"):
        machine.scheduler.commit(machine.schedule(), StepResult(0, (outcome,)))


def test_deltas_tell_cached_and_computed_tokens():
    machine = Machine(32)
    machine.run(request("a", 10, max_tokens=2))
    assert (machine.ends["a"].cached_tokens, machine.ends["a"].computed) == (0, 11)
    machine.run(request("b", 10, max_tokens=2))
    assert (machine.ends["b"].cached_tokens, machine.ends["b"].computed) == (8, 11)
    stats = machine.stats
    assert (stats.lookups, stats.hits, stats.full_hits, stats.cached_tokens) == (2, 1, 0, 8)
    assert (stats.prompt_tokens, stats.output_tokens, stats.finished["length"]) == (20, 4, 2)


# ---- stops


def test_a_stop_id_ends_the_output_and_is_its_reason():
    stop = first_token(5, 2)
    machine = Machine(32)
    machine.run(request("a", 5, stop_token_ids=(stop,)))
    assert machine.output["a"][-1] == stop and len(machine.output["a"]) <= 3
    assert (machine.ends["a"].finish_reason, machine.ends["a"].stop_reason) == ("stop", stop)
    machine.expect()


@pytest.mark.parametrize("most", [3, 8])
def test_end_of_text_ends_the_output_unless_ignored(most):
    eos = first_token(5, 2)
    for ignore in (False, True):
        each = request("a", 5, ignore_eos=ignore, max_tokens=most)
        each.eos_ids = (49_999, eos)
        machine = Machine(32)
        machine.run(each)
        machine.expect()
        assert machine.ends["a"].stop_reason is None
        assert machine.ends["a"].finish_reason == ("length" if ignore else "stop")
        assert eos in machine.output["a"][:3]
        assert (len(machine.output["a"]) < 8) == (most == 3 or not ignore)


def test_nothing_stops_before_min_tokens():
    stop = first_token(5, 2)
    machine = Machine(32)
    machine.run(request("a", 5, stop_token_ids=(stop,), min_tokens=4))
    machine.expect()
    assert len(machine.output["a"]) >= 4
    machine = Machine(32)
    machine.run(request("a", 5, stop_token_ids=(stop,), min_tokens=3))
    assert len(machine.output["a"]) == 3


def test_no_output_wanted_computes_the_prompt_and_ends():
    machine = Machine(32, tokens=3)
    machine.run(request("a", 7, max_tokens=0))
    assert machine.output["a"] == [] and machine.ends["a"].finish_reason == "length"
    assert machine.ends["a"].computed == 7 and not any(row.sample for plan in machine.plans for row in plan.rows)
    assert {plan.num_logits for plan in machine.plans} == {0}


def test_a_late_stop_cuts_what_was_committed_since():
    machine = Machine(32)
    machine.run(request("a", 5), steps=5)
    delta = machine.scheduler.finish("a", 2, "stop", "END")
    assert (delta.finish_reason, delta.stop_reason, delta.token_ids, delta.computed) == ("stop", "END", (), 7)
    each = machine.requests["a"]
    assert each.output_ids == machine.output["a"][:2] and each.finish_reason == "stop"
    assert not machine.scheduler.has_work and machine.scheduler.finish("a", 1) is None


def test_a_late_stop_while_a_plan_names_the_request():
    machine = Machine(32)
    machine.run(request("a", 5), steps=3)
    plan = machine.schedule()
    machine.hear(machine.scheduler.finish("a", 3))
    machine.check()
    assert machine.commit(plan) == [] and machine.stats.late_results == 1
    assert len(machine.requests["a"].output_ids) == 3 and not machine.scheduler.has_work


@pytest.mark.parametrize("place", [-1, 4])
def test_a_late_stop_lies_within_the_output(place):
    machine = Machine(32)
    machine.run(request("a", 5), steps=3)
    with pytest.raises(EngineError, match="of 3"):
        machine.scheduler.finish("a", place)


def test_unknown_requests_are_neither_aborted_nor_finished():
    scheduler = Machine(32).scheduler
    assert scheduler.abort("x") is None and scheduler.finish("x", 0) is None
