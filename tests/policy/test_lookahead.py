"""Room behind the rows that sample: a drafter's caches are written there, with no plan of their own."""

import pytest

from octavo.errors import CapacityError
from octavo.policy.kv import KVLedger
from octavo.types import KVGroup
from policy.fake import Violation
from policy.machine import FULL, STATE, Machine, request

WINDOW = (KVGroup("full", "full"), KVGroup("window", "window", window=6))


def room(machine, name):
    return min(len(table.blocks) for table in machine.ledger.holdings[name].tables) * machine.ledger.block_tokens


def test_only_rows_that_may_sample_look_ahead():
    ledger = KVLedger(FULL, 9, 4, lookahead=3)
    one = request("a", 10)
    one.max_total = 18
    assert [ledger.need(one, upto) for upto in (4, 9, 10, 12, 15, 16, 17, 18)] == [4, 9, 13, 15, 17, 17, 17, 18]
    silent = request("b", 10, speculate=False)
    silent.max_total = 18
    assert ledger.need(silent, 10) == 10


@pytest.mark.parametrize("groups", [FULL, WINDOW, STATE])
def test_room_stands_behind_every_row_that_samples(groups):
    machine = Machine(16, groups=groups, lookahead=5)
    machine.add(request("a", 6, max_tokens=12))
    while machine.scheduler.has_work:
        plan = machine.schedule()
        for row in plan.rows:
            end = row.start + len(row.token_ids)
            assert room(machine, "a") >= min(end + 5, 17)
        machine.commit(plan)
    machine.expect()


def test_a_request_as_large_as_the_cache_ends_alone():
    """What is looked ahead ends with the request: the refusals and their numbers are those without."""
    machine = Machine(4, lookahead=9)
    machine.run(request("a", 10, max_tokens=7))
    machine.expect()
    assert machine.stats.preemptions == machine.stats.stalls == 0
    with pytest.raises(CapacityError, match="17 tokens and the KV cache holds 16"):
        machine.add(request("b", 17))


def test_a_prompt_is_computed_up_to_its_last_token_while_the_rest_has_no_room():
    """Blocks of 1: the older grows into what the younger would look ahead to."""
    machine = Machine(22, 1, tokens=3, lookahead=6)
    machine.add(request("a", 3, max_tokens=12), request("b", [9, 8, 7, 6, 5, 4], max_tokens=8))
    rows = [row for _ in range(5) for row in machine.step().rows if row.request_id == "b"]
    assert not any(row.sample for row in rows)
    assert [(row.start, len(row.token_ids)) for row in rows] == [(0, 2), (2, 2), (4, 1)]
    assert machine.stats.stalls == 1
    machine.run()
    machine.expect()


def test_the_younger_gives_way_to_what_the_older_looks_ahead():
    machine = Machine(6, lookahead=4)
    machine.add(request("a", 7, max_tokens=12), request("b", [9] * 6, max_tokens=12))
    machine.run()
    machine.expect()
    assert machine.stats.preemptions > 0
    assert machine.requests["a"].preemptions == 0


def test_drafts_leave_the_room_that_is_looked_ahead():
    """Blocks of 1, and an older one beside: of 4 drafts as many stand in the row as leave 3 tokens behind it."""
    machine = Machine(28, 1, lookahead=3)
    right = lambda one, index: tuple(machine.alone["a"].token(index + i) for i in range(4))  # noqa: E731
    machine.propose = lambda one, index: (right(one, index) if one.id == "a" else (), ())
    machine.add(request("b", 10, max_tokens=12, speculate=False), request("a", [9, 8, 7, 6], max_tokens=20))
    machine.step()
    rows = [row for _ in range(2) for row in machine.step().rows if row.request_id == "a"]
    assert [(row.start, row.num_drafts) for row in rows] == [(4, 4), (9, 3)]
    machine.run()
    machine.expect()


def test_a_drafter_that_writes_further_is_found():
    machine = Machine(8, lookahead=2)
    machine.fake.lookahead = 7
    with pytest.raises(Violation, match="looks ahead to token"):
        machine.run(request("a", 4, max_tokens=12))
