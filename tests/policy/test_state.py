"""Recurrent state in the ledger: where snapshots are taken, where hits end, what is replayed, what is given back."""

import pytest

from octavo.policy.kv import KVLedger
from octavo.policy.state import Snapshots
from octavo.request import StateStep
from octavo.types import KVGroup
from policy.machine import STATE, Machine, first_token, request

B = 4


def states(machine):
    """Per plan: the steps of its rows."""
    return [plan.states for plan in machine.plans]


def taken(machine):
    """Token counts, from the request's start, at which its snapshots were taken: one request alone."""
    found = []
    for plan in machine.plans:
        for row, step in zip(plan.rows, plan.states, strict=True):
            found += [row.start - step.replay + after for after, _ in step.snapshots]
    return found


@pytest.mark.parametrize(("prompt", "at"), [(1, []), (4, []), (5, [4]), (8, [4]), (9, [8]), (30, [28])])
def test_a_prompt_leaves_one_snapshot_at_its_last_full_block_before_its_end(prompt, at):
    machine = Machine(32, groups=STATE)
    machine.run(request("a", prompt, max_tokens=1))
    assert taken(machine) == at
    machine.expect()


def test_regular_snapshots_go_on_in_the_output():
    machine = Machine(32, groups=STATE, snapshot_every=8)
    machine.run(request("a", 6, max_tokens=20))
    assert taken(machine) == [4, 8, 16, 24]
    machine.expect()


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 64])
def test_chunks_do_not_move_snapshots(chunk):
    machine = Machine(32, groups=STATE, tokens=chunk, snapshot_every=12)
    machine.run(request("a", 22, max_tokens=8))
    assert taken(machine) == [12, 20, 24]
    machine.expect()


def test_the_same_prompt_starts_from_its_snapshot():
    machine = Machine(32, groups=STATE)
    machine.run(request("a", 13))
    machine.run(request("b", 13))
    assert machine.requests["b"].cached == 12
    first = next(plan for plan in machine.plans if plan.rows[0].request_id == "b")
    assert first.rows[0].start == 12 and first.states[0].restore == 1
    machine.expect()


def test_a_prompt_of_whole_blocks_computes_its_last_block_again():
    machine = Machine(32, groups=STATE)
    machine.run(request("a", 12))
    machine.run(request("b", 12))
    assert machine.requests["b"].cached == 8 and machine.stats.full_hits == 0
    machine.expect()


def test_blocks_without_a_snapshot_are_no_hit_and_the_fork_gets_one():
    """b shares 10 blocks of tokens with a, whose only snapshot stands further on; c shares them too."""
    shared = [1 + i % 9 for i in range(20)]
    machine = Machine(64, groups=STATE)
    machine.run(request("a", [*shared, *[11] * 9]))
    machine.run(request("b", [*shared, *[12] * 9]))
    machine.run(request("c", [*shared, *[13] * 9]))
    assert [machine.requests[name].cached for name in "abc"] == [0, 0, 20]
    machine.expect()


def test_a_snapshot_whose_blocks_are_gone_is_no_hit():
    ledger = KVLedger(STATE, 9, B)
    a = request("a", 13)
    assert ledger.admit(a, 0, 13, 13)
    ledger.advance(a, 0, 13)
    ledger.publish(a, 13)
    ledger.release(a)
    assert ledger.match(request("b", 13)) == 3
    ledger.pools[0].clear()
    assert ledger.match(request("c", 13)) == 0


def test_a_request_waits_for_a_snapshot_that_it_can_use_and_for_nothing_else():
    long = [1 + i % 9 for i in range(40)]
    machine = Machine(64, groups=STATE, tokens=8)
    machine.add(request("a", long), request("same", long), request("other", [*long[:20], *[10] * 20]))
    machine.step()
    assert [machine.requests[name].state for name in ("a", "same", "other")] == ["running", "waiting", "waiting"]
    machine.run()
    assert machine.requests["same"].cached == 36 and machine.requests["other"].cached == 0
    machine.expect()


def test_where_all_snapshots_are_being_written_none_is_taken_and_nobody_waits_forever():
    machine = Machine(64, groups=STATE, snapshots=1, tokens=64, seqs=3)
    machine.run(*[request(name, [number] * 9) for number, name in enumerate("abc", 1)])
    assert sum(len(step.snapshots) for step in states(machine)[0]) == 1
    machine.expect()


def test_the_oldest_snapshot_gives_way():
    machine = Machine(64, groups=STATE, snapshots=2)
    for number, name in enumerate("abc", 1):
        machine.run(request(name, [number] * 9))
    for number, name in ((1, "a2"), (3, "c2")):
        machine.run(request(name, [number] * 9))
    assert (machine.requests["a2"].cached, machine.requests["c2"].cached) == (0, 8)
    assert machine.ledger.states.pool.evictions == 2
    machine.expect()


def test_accepted_drafts_are_replayed_and_rejected_ones_are_not():
    machine = Machine(32, groups=STATE)
    right = [first_state_token(6, place) for place in range(12)]
    wrong = [(token + 1) % 50 for token in right]
    machine.propose = lambda _, index: ((right[index - 6], right[index - 5], wrong[index - 4]), ())
    machine.run(request("a", 6, max_tokens=9))
    steps = [step[0].replay for step in states(machine)]
    assert steps == [0, 0, 2, 2]  # each time two of three are right
    machine.expect()


def first_state_token(prompt, place):
    machine = Machine(32, groups=STATE)
    return machine.run(request("probe", prompt, max_tokens=place + 1))["probe"][place]


def test_a_snapshot_within_replayed_drafts_counts_from_the_state_before():
    machine = Machine(32, groups=STATE, snapshot_every=4)
    right = [first_state_token(6, place) for place in range(12)]
    machine.propose = lambda _, index: (tuple(right[index - 6 : index - 3]), ())
    machine.run(request("a", 6, max_tokens=10))
    assert taken(machine) == [4, 8, 12]
    assert any(step[0].replay >= step[0].snapshots[0][0] > 0 for step in states(machine) if step[0].snapshots)
    machine.run(request("b", [*machine.requests["a"].prompt_ids, *machine.output["a"]]))
    assert machine.requests["b"].cached == 12
    machine.expect()


def test_preemption_gives_the_slot_back_and_starts_again_from_a_snapshot():
    machine = Machine(9, groups=STATE, longest=40)
    machine.run(request("a", 13, max_tokens=14), request("b", [3] * 13, max_tokens=14))
    assert machine.stats.preemptions > 0
    machine.expect()


def test_a_faulty_request_leaves_no_snapshot_behind():
    machine = Machine(32, groups=STATE, tokens=8)
    machine.run(request("good", [9] * 13))
    machine.faulty = lambda row: row.request_id == "bad"
    machine.run(request("bad", 13))
    machine.faulty = lambda row: False
    machine.run(request("again", 13))
    assert machine.requests["again"].cached == 0 and machine.ends["bad"].finish_reason == "error"
    machine.expect("good", "again")


def test_who_started_from_a_snapshot_that_was_found_bad_leaves_none():
    ledger = KVLedger(STATE, 17, B, num_snapshots=4)
    bad, heir = request("bad", 13), request("heir", 22)
    assert ledger.admit(bad, 0, 13, 13)
    ledger.advance(bad, 0, 13)
    ledger.publish(bad, 13)
    assert ledger.match(heir) == 3 and ledger.admit(heir, 3, 22, 22)
    ledger.forget(bad)
    assert ledger.advance(heir, 12, 10)[0].snapshots
    ledger.publish(heir, 22)
    assert not ledger.states.pool.idle and ledger.match(request("late", 30)) == 0


def test_without_prefix_caching_state_goes_on_and_no_snapshot_is_taken():
    machine = Machine(32, groups=STATE, snapshot_every=4, enable_prefix_caching=False)
    machine.run(request("a", 13), request("b", 13))
    assert all(step == StateStep() for plan in states(machine) for step in plan)
    machine.expect()


@pytest.mark.parametrize(("backoff", "cached"), [(0, 12), (1, 12), (2, 8), (5, 8), (6, 4), (10, 0)])
def test_a_backoff_keeps_the_last_tokens_out_of_the_hit(backoff, cached):
    machine = Machine(32, groups=STATE, snapshot_every=4, hit_backoff=backoff, snapshots=8)
    machine.run(request("a", 14))
    machine.run(request("b", 14))
    assert machine.requests["b"].cached == cached
    machine.expect()


def test_tables_speak_of_the_numbers_of_all_groups():
    machine = Machine(32, groups=(KVGroup("s", "state"), KVGroup("f", "full"), KVGroup("w", "window", window=5)))
    machine.run(request("a", 13))
    assert {update.group for plan in machine.plans for update in plan.tables} == {1, 2}
    machine.expect()


def test_a_model_without_blocks_is_bounded_by_nothing_but_its_context():
    machine = Machine(1, groups=(KVGroup("state", "state"),), longest=64)
    assert machine.ledger.capacity > 1000
    machine.run(request("a", 30), request("b", 30))
    assert machine.requests["b"].cached == 28
    machine.expect()


def test_without_recurrent_state_plans_say_nothing_of_it():
    machine = Machine(32)
    machine.run(request("a", 13))
    assert states(machine) == [()] * len(machine.plans)
    assert first_token(13, 0) == machine.output["a"][0]


def test_claims_are_the_snapshots_to_come_and_others_are_not_awaited():
    keys = [bytes([n]) * 32 for n in range(6)]
    snapshots = Snapshots(4, 4, B)
    snapshots.open("a", keys, 0, 0, {1, 3})
    assert snapshots.computing == {keys[0]: 1, keys[2]: 1, keys[3]: 1}
    assert [snapshots.awaited([key]) for key in keys] == [True, False, True, True, False, False]
    assert not snapshots.awaited([])
    snapshots.open("b", keys, 0, 0, {3})
    assert snapshots.computing == {keys[0]: 1, keys[2]: 2, keys[3]: 2}
    snapshots.release("a")
    assert snapshots.computing == {keys[2]: 1, keys[3]: 1}


def test_the_longest_prefix_with_a_snapshot_is_found_from_any_length():
    keys = [bytes([n]) * 32 for n in range(6)]
    snapshots = Snapshots(4, 0, B)
    snapshots.open("a", keys, 0, 0, {3})
    snapshots.advance("a", 0, 13, keep=True)
    snapshots.publish("a", keys, 3, sound=True)
    assert [snapshots.longest(keys, length) for length in range(7)] == [0, 0, 0, 3, 3, 3, 3]
