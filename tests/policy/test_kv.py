"""KVLedger by itself: keys, hits, reservations, windows, claims, and what the machine is told."""

import pytest

from octavo.errors import UnsupportedError
from octavo.policy.kv import KVLedger
from octavo.request import TableUpdate
from octavo.types import KVGroup
from policy.machine import FULL, request

WINDOW = (KVGroup("window", "window", window=4),)


def computed(ledger, each):
    """Admits, computes and publishes every known token, as far as it was not a hit."""
    assert ledger.admit(each, ledger.match(each), each.num_tokens, each.num_tokens)
    ledger.publish(each, each.num_tokens)
    return each


def warm(*prompts, groups=FULL, blocks=32, **keys):
    """A ledger of 4-token blocks through which these prompts went."""
    ledger = KVLedger(groups, blocks + 1, 4, **keys)
    for i, prompt in enumerate(prompts):
        each = computed(ledger, request(f"warm{i}", prompt))
        ledger.release(each)
        ledger.discard(each)
    return ledger


def hit(ledger, prompt, **fields):
    asker = request("asker", prompt, **fields)
    found = ledger.match(asker)
    ledger.discard(asker)
    return found


def test_a_window_without_tokens_is_refused():
    with pytest.raises(UnsupportedError, match="group w: a window"):
        KVLedger([KVGroup("w", "window")], 8, 4)


def test_a_window_of_one_token_is_served():
    assert KVLedger([KVGroup("w", "window", window=1)], 8, 4).capacity > 1000


def test_capacity_is_the_smallest_group_and_windows_do_not_grow():
    full, window = KVGroup("f", "full"), KVGroup("w", "window", window=8)
    assert KVLedger([full], 6, 4).capacity == 20
    assert KVLedger([full, window], [11, 4], 4).capacity == 40  # 3 blocks can hold any window of 8
    assert KVLedger([full, window], [11, 3], 4).capacity == 8
    assert KVLedger([window], 4, 4).capacity > 1000


@pytest.mark.parametrize(("tokens", "blocks"), [(3, 0), (4, 1), (5, 1), (7, 1), (8, 2), (9, 2), (30, 3)])
def test_a_hit_ends_at_the_last_full_block_that_both_have(tokens, blocks):
    assert hit(warm(12), tokens) == blocks


def test_a_hit_ends_where_tokens_differ():
    ledger = warm(12)
    prompt = [*request("", 12).prompt_ids]
    prompt[5] += 1
    assert hit(ledger, prompt) == 1


def test_a_block_is_found_behind_its_own_prefix_only():
    first, second, tail = [1] * 4, [2] * 4, [3] * 4
    ledger = warm([*first, *tail])
    assert hit(ledger, [*first, *tail]) == 2
    assert hit(ledger, tail) == 0 and hit(ledger, [*second, *tail]) == 0


def test_tokens_are_not_told_apart_by_their_low_bytes_only():
    ledger = warm([1, 2, 3, 4])
    assert hit(ledger, [1 + 2**8, 2, 3, 4]) == hit(ledger, [1 + 2**30, 2, 3, 4]) == 0


@pytest.mark.parametrize(
    "other", [{"salt": "s"}, {"adapter": "s"}, {"salt": "s", "adapter": "s"}, {"prompt_logprobs": 0}]
)
def test_salt_adapter_and_all_rows_keep_apart(other):
    assert hit(warm(12), 12, **other) == 0


def test_a_hit_ends_before_the_first_row_that_is_scored():
    """The token at index i is scored by the row before it."""
    for first, blocks in ((0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (11, 2)):
        assert hit(warm(12), 12, prompt_logprobs=0, prompt_logprobs_from=first) == blocks, first


def test_the_name_of_an_adapter_is_not_a_salt():
    ledger = KVLedger(FULL, 33, 4)
    computed(ledger, request("a", 12, adapter="X"))
    assert hit(ledger, 12, salt="X") == 0 and hit(ledger, 12, adapter="X") == 3


def test_the_load_generation_of_an_adapter_is_part_of_the_key():
    ledger = KVLedger(FULL, 33, 4)
    computed(ledger, request("a", 12, adapter="X@1"))
    assert hit(ledger, 12, adapter="X@2") == 0


def test_numerics_model_and_block_size_are_part_of_the_key():
    def key(block_tokens=4, **names):
        return KVLedger(FULL, 9, block_tokens, **names).chain(request("a", 4)).keys[0]

    keys = {key(), key(numerics="n"), key(model="n"), key(numerics="m"), key(numerics="m", model="n")}
    assert len(keys) == 5
    assert KVLedger(FULL, 9, 4).chain(request("a", 4)).root != KVLedger(FULL, 9, 2).chain(request("a", 4)).root


def test_nothing_is_found_when_caching_is_off():
    ledger = warm(12, enable_prefix_caching=False)
    assert hit(ledger, 12) == 0 and len(ledger.pools[0].free) == 32


def test_a_backoff_keeps_the_last_tokens_out_of_the_hit():
    assert [hit(warm(12, hit_backoff=b), 12) for b in (0, 1, 3, 4, 8, 11, 40)] == [3, 2, 2, 1, 0, 0, 0]


def test_a_backoff_longer_than_the_prompt_leaves_no_hit():
    ledger = KVLedger(FULL, 9, 1, hit_backoff=2)
    computed(ledger, request("warm", 5))
    assert [hit(ledger, tokens) for tokens in (1, 2, 3, 4)] == [0, 0, 0, 1]


def test_a_window_hit_needs_only_the_blocks_in_sight():
    ledger = warm(16, groups=WINDOW)
    assert hit(ledger, 17) == 4
    pool = ledger.pools[0]
    keys = ledger.chain(request("other", 16)).keys
    pool.forget({keys[0]} | {keys[1]})
    assert hit(ledger, 17) == 0  # what grew from a forgotten block is forgotten with it


def evict(ledger, group, *places, prompt=17):
    pool, keys = ledger.pools[group], ledger.chain(request("evictor", prompt)).keys
    for place in places:
        block = pool.find(keys[place])
        pool._unkey(block)
        del pool.idle[block]
        pool.free.append(block)


@pytest.mark.parametrize(
    ("lost", "blocks"), [((0,), 4), ((0, 1), 4), ((0, 1, 2), 4), ((3,), 3), ((2, 3), 2), ((1, 3), 3), ((0, 2, 3), 2)]
)
def test_a_window_hit_walks_down_to_a_length_whose_window_is_whole(lost, blocks):
    ledger = warm(16, groups=WINDOW)
    evict(ledger, 0, *lost)
    assert hit(ledger, 17) == blocks


def test_a_hit_on_everything_needs_the_window_before_the_last_token():
    ledger = warm(16, groups=WINDOW)
    evict(ledger, 0, 2)
    assert hit(ledger, 16) == 2  # token 15 sees 11, in the lost block
    ledger = warm(16, groups=WINDOW)
    evict(ledger, 0, 1)
    assert hit(ledger, 16) == 4


def test_all_groups_agree_on_a_hit():
    ledger = warm(16, groups=(*FULL, *WINDOW))
    evict(ledger, 0, 3)
    assert hit(ledger, 17) == 3
    evict(ledger, 1, 2)
    assert hit(ledger, 17) == 2
    evict(ledger, 0, 0)
    assert hit(ledger, 17) == 0


def test_admission_shares_the_hit_and_takes_the_rest():
    ledger = warm(8, blocks=4)
    each = request("a", 11)
    assert ledger.admit(each, 2, 10, 11) == 10
    table = ledger.holdings["a"].tables[0]
    assert len(table.blocks) == 3 and [ledger.pools[0].refs[block] for block in table.blocks] == [1, 1, 1]
    second = request("b", 11)
    assert ledger.admit(second, 2, 9, 11) == 9
    assert [ledger.pools[0].refs[block] for block in ledger.holdings["b"].tables[0].blocks] == [2, 2, 1]


def test_admission_is_refused_whole_and_leaves_no_trace():
    ledger = warm(8, blocks=4)
    each = request("a", 17)
    assert ledger.admit(each, 2, 9, 17) == 0  # the first chunk would fit, the whole would not
    assert not ledger.holdings and ledger.pools[0].available == 4 and not ledger._computing
    assert ledger.admit(request("b", 16), 2, 9, 16) == 9


def test_a_hit_that_is_idle_is_not_counted_as_room():
    ledger = warm(8, blocks=3)
    assert ledger.admit(request("a", 13), 2, 13, 13) == 0
    assert ledger.admit(request("b", 12), 2, 12, 12) == 12


def test_admission_in_two_groups_is_all_or_nothing():
    groups = (*FULL, KVGroup("second", "full"))
    ledger = KVLedger(groups, [9, 3], 4)
    assert ledger.admit(request("a", 12), 0, 12, 12) == 0
    assert [pool.available for pool in ledger.pools] == [8, 2]
    assert ledger.admit(request("b", 8), 0, 8, 8) == 8


def test_a_window_admits_a_long_prompt_in_small_pieces():
    ledger = KVLedger(WINDOW, 3, 4)  # 2 blocks, window 4
    each = request("a", 40)
    assert ledger.admit(each, 0, 40, 40) == 8
    ledger.publish(each, 8)
    assert ledger.reach(each) == 12 and ledger.reserve(each, 12)
    ledger.publish(each, 12)
    assert ledger.holdings["a"].tables[0].blocks[:2] == [0, 0]


def test_a_window_with_a_hit_needs_only_what_is_still_to_come_into_sight():
    ledger = warm(8, groups=WINDOW, blocks=3)
    each = request("a", 40)
    assert ledger.match(each) == 2 and ledger.admit(each, 2, 12, 40) == 12


def test_a_window_with_a_hit_is_refused_when_nothing_is_left():
    ledger = warm(8, groups=WINDOW, blocks=3)
    ledger.admit(request("other", [1] * 8), 0, 8, 8)  # takes the free block and the one out of sight
    each = request("a", 40)
    assert ledger.match(each) == 2 and ledger.admit(each, 2, 12, 40) == 0


def test_a_window_larger_than_the_hit_needs_all_of_it():
    ledger = KVLedger(WINDOW, 9, 1)
    computed(ledger, request("warm", 3))
    ledger.release(request("warm", 3))
    assert hit(ledger, 5) == 3
    evict(ledger, 0, 0)
    assert hit(ledger, 5) == 0


def test_reserve_takes_in_all_groups_or_none():
    ledger = KVLedger((*FULL, KVGroup("second", "full")), [9, 3], 4)
    each = request("a", 5)
    assert ledger.admit(each, 0, 4, 5) == 4
    assert ledger.reach(each) == 8
    assert not ledger.reserve(each, 9)
    assert [pool.available for pool in ledger.pools] == [7, 1]
    assert ledger.reserve(each, 8) and [pool.available for pool in ledger.pools] == [6, 0]
    assert ledger.reserve(each, 3) and [pool.available for pool in ledger.pools] == [6, 0]


def test_only_full_blocks_are_published():
    ledger = KVLedger(FULL, 9, 4)
    each = request("a", 9)
    ledger.admit(each, 0, 9, 9)
    ledger.publish(each, 3)
    assert hit(ledger, 9) == 0
    ledger.publish(each, 7)
    assert hit(ledger, 9) == 1
    ledger.publish(each, 9)
    assert hit(ledger, 9) == 2


def test_output_is_found_again_as_prompt():
    ledger = KVLedger(FULL, 9, 4)
    each = request("a", 6)
    ledger.admit(each, 0, 6, 6)
    each.output_ids += [1, 2, 3]
    ledger.reserve(each, 8)
    ledger.publish(each, 8)
    assert hit(ledger, [*each.prompt_ids, 1, 2, 3, 4]) == 2


def test_a_window_slides_when_blocks_are_wholly_behind_it():
    ledger = KVLedger(WINDOW, 9, 4)
    each = request("a", 20)
    ledger.admit(each, 0, 20, 20)
    ledger.publish(each, 7)
    assert ledger.pools[0].available == 3
    ledger.publish(each, 8)
    assert ledger.pools[0].available == 4 and ledger.holdings["a"].tables[0].nulls == 1
    ledger.publish(each, 16)
    assert ledger.pools[0].available == 6 and ledger.holdings["a"].tables[0].blocks[:3] == [0, 0, 0]


def test_a_window_slides_between_two_publications():
    ledger = KVLedger([KVGroup("w", "window", window=5)], 9, 4)
    each = request("a", 20)
    ledger.admit(each, 0, 20, 20)
    for computed_tokens, available in ((8, 3), (9, 4), (12, 4), (13, 5), (16, 5), (17, 6)):
        ledger.publish(each, computed_tokens)
        assert ledger.pools[0].available == available


def test_trim_keeps_blocks_that_hold_a_token():
    ledger = KVLedger(FULL, 9, 4)
    each = request("a", 5)
    ledger.admit(each, 0, 16, 5)
    ledger.trim(each, 9)
    assert len(ledger.holdings["a"].tables[0].blocks) == 3
    ledger.trim(each, 8)
    assert len(ledger.holdings["a"].tables[0].blocks) == 2 and ledger.pools[0].available == 6


def test_release_drops_children_first():
    ledger = warm(12, blocks=4)
    keys = ledger.chain(request("a", 12)).keys
    assert [ledger.pools[0].keys[block] for block in ledger.pools[0].idle] == keys[::-1]


def test_the_machine_is_told_differences_only():
    ledger = KVLedger((*FULL, *WINDOW), 9, 4)
    each = request("a", 20)
    ledger.admit(each, 0, 8, 8)
    full, window = (table.blocks for table in ledger.holdings["a"].tables)
    assert ledger.updates(each, 2) == [TableUpdate(2, 0, 0, tuple(full)), TableUpdate(2, 1, 0, tuple(window))]
    assert ledger.updates(each, 2) == []
    ledger.reserve(each, 9)
    assert ledger.updates(each, 2) == [TableUpdate(2, g, 2, (t[2],)) for g, t in enumerate((full, window))]
    ledger.publish(each, 8)
    assert ledger.updates(each, 2) == [TableUpdate(2, 1, 0, (0,))]
    assert ledger.updates(each, 2) == []
    ledger.reserve(each, 13)
    ledger.publish(each, 12)
    ledger.trim(each, 12)
    assert ledger.updates(each, 2) == [TableUpdate(2, 1, 1, (0,))]
    ledger.reserve(each, 16)
    assert [(u.group, u.first, len(u.blocks)) for u in ledger.updates(each, 2)] == [(0, 3, 1), (1, 3, 1)]


def test_entries_given_back_and_taken_again_are_told_again():
    ledger = KVLedger(FULL, 9, 4)
    each = request("a", 20)
    ledger.admit(each, 0, 12, 12)
    ledger.updates(each, 0)
    ledger.trim(each, 8)
    ledger.reserve(each, 12)
    assert [(u.first, len(u.blocks)) for u in ledger.updates(each, 0)] == [(2, 1)]


def test_a_block_that_another_computes_is_awaited_until_it_is_published():
    ledger = KVLedger(FULL, 33, 4)
    first = request("a", 12)
    ledger.admit(first, 0, 4, 12)
    twin = request("b", 12)
    assert ledger.awaits(twin, 0) and not ledger.awaits(request("c", 3), 0)
    assert not ledger.awaits(request("d", 12, prompt_logprobs=0), 0)
    ledger.publish(first, 4)
    assert ledger.match(twin) == 1 and ledger.awaits(twin, 1)
    ledger.release(first)
    assert not ledger.awaits(twin, 1) and not ledger._computing


def test_two_that_compute_the_same_both_claim_it():
    ledger = KVLedger(FULL, 33, 4)
    for name in "ab":
        ledger.admit(request(name, 8, prompt_logprobs=0), 0, 8, 8)
    twin = request("c", 8)
    ledger.publish(request("a", 8), 4)
    assert ledger.awaits(twin, 0) and ledger.awaits(twin, 1)
    ledger.publish(request("b", 8), 4)
    assert not ledger.awaits(twin, 0) and ledger.awaits(twin, 1)


def test_forgetting_takes_the_chain_and_taints_who_shares_it():
    ledger = warm(8)
    bad, sharer, other = request("bad", 12), request("sharer", 9), request("other", [1] * 8)
    for each in (bad, sharer):
        ledger.admit(each, 2, each.num_tokens, each.num_tokens)
    ledger.admit(other, 0, 8, 8)
    ledger.publish(bad, 12)
    ledger.forget(bad)
    assert hit(ledger, 12) == 0
    assert [ledger.holdings[name].tainted for name in ("bad", "sharer", "other")] == [True, True, False]
    sharer.output_ids += [1, 2, 3]
    ledger.reserve(sharer, 12)
    ledger.publish(sharer, 12)
    ledger.publish(other, 8)
    assert hit(ledger, [*sharer.prompt_ids, 1, 2, 3]) == 0 and hit(ledger, [1] * 8) == 2


def test_forgetting_clears_windows_whose_chains_have_gaps():
    ledger = warm(16, groups=WINDOW)
    each = request("a", [3] * 8)
    ledger.admit(each, 0, 8, 8)
    ledger.forget(each)
    assert hit(ledger, 17) == 0 and ledger.pools[0].available == 30


def test_a_request_that_never_had_keys_can_be_discarded():
    ledger = warm(8)
    ledger.discard(request("gone", 8))
    assert not ledger._chains
