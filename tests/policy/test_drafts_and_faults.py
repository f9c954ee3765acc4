"""Drafts in chains and trees, aborts at every moment, rows that are not finite."""

from itertools import pairwise

import pytest

from octavo.errors import EngineError
from octavo.request import KVCopy, StepPlan, StepResult
from policy.machine import Machine, first_token, request

# ---- drafts


def drafting(drafts, parents=(), **limits):
    """A machine whose request gets these drafts after its first token: `drafts(alone, index)`."""
    machine = Machine(limits.pop("blocks", 32), **limits)
    machine.propose = lambda request, index: (
        (tuple(drafts(machine.alone[request.id], index)), parents) if index == 6 else ((), ())
    )
    return machine


def right(count):
    return lambda alone, index: [alone.token(index + i) for i in range(count)]


def wrong(count):
    return lambda alone, index: [(alone.token(index + i) + 1) % 50 for i in range(count)]


def test_right_drafts_are_accepted_and_save_steps():
    machine = drafting(right(3))
    machine.run(request("a", 5))
    machine.expect()
    (row,) = machine.plans[1].rows
    assert (row.start, len(row.token_ids), row.num_drafts, row.logits_from, row.parents) == (5, 4, 3, 0, ())
    assert len(machine.plans) == 8 - 3 and machine.stats.drafts_accepted == 3 and machine.stats.drafts_rejected == 0


def test_wrong_drafts_are_trimmed():
    machine = drafting(wrong(6))
    machine.run(request("a", 5), steps=2)
    assert len(machine.ledger.holdings["a"].tables[0].blocks) == 2
    machine.run()
    machine.expect()
    assert (machine.stats.drafts_accepted, machine.stats.drafts_rejected) == (0, 6)


def test_accepted_tree_tokens_are_moved_by_the_next_row():
    machine = drafting(
        lambda a, i: [(a.token(i) + 1) % 50, a.token(i), (a.token(i + 1) + 1) % 50, a.token(i + 1)], (-1, -1, 1, 1)
    )
    machine.run(request("a", 5), steps=2)
    assert machine.plans[1].rows[0].parents == (0, 0, 2, 2)
    assert len(machine.ledger.holdings["a"].tables[0].blocks) == 3  # token 9 is still to be moved
    plan = machine.step()
    assert plan.copies == (KVCopy(0, 7, 6), KVCopy(0, 9, 7)) and plan.rows[0].start == 8
    machine.run()
    machine.expect()
    assert machine.stats.copies == 2 and machine.stats.drafts_accepted == 2


def test_a_tree_that_is_a_chain_needs_no_parents():
    machine = drafting(right(3), (-1, 0, 1))
    machine.run(request("a", 5))
    assert machine.plans[1].rows[0].parents == () and machine.stats.copies == 0
    machine.expect()


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"tokens": 3}, 2),
        ({"tokens": 2}, 1),
        ({"tokens": 1}, 0),
        ({"logits": 4}, 3),
        ({"blocks": 2}, 2),
        ({"blocks": 3}, 5),
        ({"longest": 9}, 2),
    ],
)
def test_drafts_are_cut_to_budgets_blocks_and_length(limits, kept):
    machine = drafting(right(5), **({"longest": 64} | limits))
    machine.run(request("a", 5, max_tokens=None if "longest" in limits else 20), steps=12)
    row = next(row for plan in machine.plans for row in plan.rows if row.start == 5)
    assert row.num_drafts == kept and machine.stats.drafts_dropped == 5 - kept


def test_drafts_fill_what_is_left_of_the_last_block():
    machine = drafting(right(5), blocks=3)
    machine.run(request("a", 5, salt="a"), request("b", 3, salt="b"), steps=2)
    assert [row.num_drafts for row in machine.plans[1].rows] == [2, 0]


def test_nobody_is_preempted_for_drafts():
    machine = drafting(right(6), blocks=5)
    machine.run(request("a", 5, salt="a", max_tokens=3), request("b", 5, salt="b", max_tokens=3))
    machine.expect()
    assert machine.stats.preemptions == 0 and machine.stats.drafts_dropped > 0


def test_drafts_are_offered_once():
    machine = drafting(wrong(2))
    machine.run(request("a", 5))
    assert [plan.rows[0].num_drafts for plan in machine.plans] == [0, 2, *[0] * 6]


def test_a_stop_within_accepted_drafts_cuts_the_rest():
    stop = first_token(5, 2)
    machine = drafting(right(5))
    machine.run(request("a", 5, stop_token_ids=(stop,)))
    machine.expect()
    assert machine.output["a"][-1] == stop and machine.ends["a"].computed <= 5 + len(machine.output["a"])
    assert len(machine.ends["a"].logprobs) == len(machine.ends["a"].token_ids)


def test_a_rejected_stop_id_does_not_end_the_request():
    machine = Machine(32)
    each = request("a", 5, ignore_eos=False)
    machine.add(each)
    alone = machine.alone["a"]
    said = alone.outputs()[0]
    each.eos_ids = (next(token for token in range(50) if token not in said),)
    machine.propose = lambda request, index: (each.eos_ids, ())
    machine.run()
    assert len(machine.output["a"]) == 8 and machine.ends["a"].finish_reason == "length"


def test_drafts_of_the_preempted_are_verified_when_they_resume():
    machine = Machine(6, logits=4)
    machine.propose = lambda request, index: ((3, machine.alone[request.id].token(index)), (-1, -1))
    machine.run(request("old", 9, salt="o"), request("young", 9, salt="y"))
    machine.expect()
    assert machine.stats.preemptions > 0 and machine.stats.copies > 0
    young = [row for plan in machine.plans for row in plan.rows if row.request_id == "young"]
    again = next(row for before, row in pairwise(young) if row.start < before.start)
    assert (again.num_drafts, again.num_logits) == (2, 3) and len(again.token_ids) > 3


def test_a_preempted_request_moves_nothing_when_it_resumes():
    def tree(request, index):
        if (request.id, index) != ("young", 12):
            return (), ()
        token = machine.alone["young"].token(12)
        return ((token + 1) % 50, token), (-1, -1)

    machine = Machine(7)
    machine.propose = tree
    machine.run(request("old", 9, salt="o"), request("young", 9, salt="y"))
    machine.expect()
    assert (machine.stats.drafts_accepted, machine.stats.preemptions, machine.stats.copies) == (1, 1, 0)


# ---- abort and faults


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("depth", [1, 2])
def test_abort_at_every_step_frees_everything_and_disturbs_nobody(size, depth):
    for moment in range(30):
        machine = Machine(32 * 4 // size, size, tokens=4, depth=depth)
        machine.add(request("a", 10, max_tokens=10, salt="a"), request("b", 10, max_tokens=10, salt="b"))
        outstanding, moves = [], 0
        while machine.scheduler.has_work:
            if moves == moment:
                machine.abort("a")
            moves += 1
            plan = machine.schedule()
            if plan:
                outstanding.append(plan)
            if moves == moment:
                machine.abort("a")
            if not plan or len(outstanding) == depth:
                machine.commit(outstanding.pop(0))
        machine.expect("b")
        pool = machine.ledger.pools[0]
        assert pool.available == pool.usable and machine.ends["a"].finish_reason in ("abort", "length")


def test_aborts_are_counted_by_state():
    machine = Machine(7, seqs=2)
    machine.add(*(request(name, 9, salt=name) for name in "abc"))
    machine.abort("c")
    plan = machine.schedule()
    machine.abort("b")
    machine.commit(plan)
    machine.abort("a")
    assert machine.stats.aborts == {"waiting": 1, "preempted": 0, "running": 1, "in_flight": 1}
    assert machine.scheduler.abort("a") is None and machine.stats.finished["abort"] == 3


def test_a_preempted_request_can_be_aborted_while_it_waits():
    machine = Machine(6)
    machine.add(request("old", 9, salt="o"), request("young", 9, salt="y"))
    machine.run(steps=6)
    assert machine.requests["young"].state == "waiting"
    machine.abort("young")
    machine.run()
    machine.expect("old")
    assert machine.stats.aborts["preempted"] == 1


def test_the_computed_prefix_of_an_aborted_request_is_kept():
    machine = Machine(32, tokens=5)
    machine.add(request("a", 12))
    machine.step()
    machine.step()
    machine.abort("a")
    machine.run(request("b", 12))
    assert machine.ends["b"].cached_tokens == 8


def test_a_row_that_is_not_finite_fails_its_request_alone_and_nothing_of_it_is_found():
    machine = Machine(32)
    machine.faulty = lambda row: row.request_id == "bad" and row.start > 9
    machine.run(request("good", 9, salt="g"), request("bad", 9))
    machine.expect("good")
    assert machine.ends["bad"].finish_reason == "error" and machine.ends["bad"].token_ids == ()
    machine.faulty = lambda row: False
    machine.run(request("again", 9))
    machine.expect("again")
    assert machine.ends["again"].cached_tokens == 0


def test_bad_news_of_an_ended_request_still_clean_the_cache():
    machine = Machine(32)
    machine.add(request("a", 9))
    machine.step()
    plan = machine.schedule()
    machine.abort("a")
    machine.faulty = lambda row: True
    assert machine.commit(plan) == []
    machine.faulty = lambda row: False
    machine.run(request("b", 9))
    assert machine.ends["b"].cached_tokens == 0


def test_an_empty_plan_is_false_and_cannot_be_committed():
    machine = Machine(32)
    plan = machine.scheduler.schedule(0.0)
    assert isinstance(plan, StepPlan) and not plan
    with pytest.raises(EngineError):
        machine.scheduler.commit(plan, StepResult(plan.number, ()))
