"""A token handed over as an int moves a request as the RowResult that it stands for does: same plans, same deltas."""

from unittest.mock import patch

import pytest

from octavo.policy import decode, scheduler
from octavo.request import RowResult, StepResult
from octavo.types import KVGroup
from policy.fake import EOS
from policy.machine import FULL, Machine, request

WINDOW = (KVGroup("full", "full"), KVGroup("window", "window", window=6))


def told_at_length(machine):
    """The machine's results with every int written out."""
    run = machine.fake.run

    def full(plan, *args):
        result = run(plan, *args)
        rows = tuple(RowResult((row,)) if isinstance(row, int) else row for row in result.rows)
        return StepResult(result.number, rows)

    machine.fake.run = full


def story(at_length, **shape):
    """Some end by length, by a stop id, by the end of text, by hand; blocks run short and the youngest gives way."""
    machine = Machine(**shape)
    if at_length:
        told_at_length(machine)
    machine.add(request("a", 6, max_tokens=20), request("b", 8, max_tokens=9, ignore_eos=False))
    machine.add(request("c", 4, max_tokens=30, stop_token_ids=(9, 11, 13, 30)), request("d", 10, prompt_logprobs=0))
    deltas = []
    for step in range(60):
        plan = machine.schedule()
        if plan:
            deltas.append(machine.commit(plan))
        if step == 7:
            machine.abort("d")
        if step == 9:
            machine.add(request("e", 5, max_tokens=12, min_tokens=4, ignore_eos=False))
    assert not machine.scheduler.has_work
    return machine.plans, deltas, machine.output, machine.stats.as_dict()


@pytest.mark.parametrize("groups", [FULL, WINDOW])
@pytest.mark.parametrize("blocks", [12, 40])
@pytest.mark.parametrize("budget", [{"tokens": 64, "logits": 64}, {"tokens": 3, "logits": 2}])
def test_ints_and_results_tell_the_same_story(groups, blocks, budget):
    shape = {"blocks": blocks, "groups": groups, **budget}
    assert story(at_length=False, **shape) == story(at_length=True, **shape)


def test_most_rows_of_a_decode_take_the_short_way():
    taken = []
    machine = Machine(40)
    with patch.object(scheduler, "collect", lambda *args: taken.append(args[2]) or decode.collect(*args)):
        machine.run(request("a", 6, max_tokens=20), request("b", 8, max_tokens=20))
    decodes = [row for plan in machine.plans for row in plan.rows if len(row.token_ids) == 1]
    assert len(decodes) * 0.6 < len(taken) < len(decodes)


def test_a_token_that_ends_text_is_not_passed_over():
    machine = Machine(40)
    story = machine.run(request("a", 6, max_tokens=40, ignore_eos=False))
    machine.expect()
    assert EOS not in story["a"][:-1]


def test_a_row_that_was_prepared_is_dropped_when_its_request_gives_way():
    machine = Machine(12, seqs=4)
    machine.add(*(request(name, 6, max_tokens=24) for name in "abcd"))
    while machine.scheduler.has_work:
        machine.step()
    assert machine.stats.preemptions
    machine.expect()


def test_between_two_steps_a_request_has_computed_what_was_planned():
    machine = Machine(40)
    machine.add(request("a", 6, max_tokens=20), request("b", 8, max_tokens=9))
    going_on = 0
    while machine.scheduler.has_work:
        machine.step()
        for each in machine.requests.values():
            if each.state == "running":
                going_on += 1
                assert each.computed == each.planned == each.num_tokens - 1
    assert going_on > 20
