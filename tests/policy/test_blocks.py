"""BlockPool by itself: states of a block, order of eviction, twins under one key, forgetting."""

import pytest

from octavo.policy.blocks import BlockPool


def keyed(pool, *names):
    """A chain of held blocks published under these keys, the root first."""
    blocks, parent = [], b"root"
    for name in names:
        blocks.append(pool.take())
        pool.publish(blocks[-1], name, parent)
        parent = name
    return blocks


def test_the_null_block_is_never_taken():
    pool = BlockPool(4)
    assert {pool.take() for _ in range(3)} == {1, 2, 3}
    assert (pool.usable, pool.available) == (3, 0)


def test_a_pool_needs_a_block_beside_the_null_block():
    assert BlockPool(2).usable == 1
    with pytest.raises(ValueError, match="null block"):
        BlockPool(1)


def test_a_block_without_a_key_is_free_after_the_last_drop():
    pool = BlockPool(3)
    block = pool.take()
    pool.drop(block)
    assert sorted(pool.free) == [1, 2] and not pool.idle


def test_a_keyed_block_waits_idle_and_comes_back_when_shared():
    pool = BlockPool(3)
    (block,) = keyed(pool, b"a")
    pool.share(block)
    pool.drop(block)
    assert pool.refs[block] == 1 and not pool.idle
    pool.drop(block)
    assert list(pool.idle) == [block] and pool.available == 2 and pool.find(b"a") == block
    pool.share(block)
    assert pool.refs[block] == 1 and not pool.idle and pool.available == 1


def test_free_blocks_go_before_idle_ones_and_the_longest_idle_before_others():
    pool = BlockPool(4)
    first, second = keyed(pool, b"a", b"b")
    pool.drop(second)
    pool.drop(first)
    assert pool.take() not in (first, second) and pool.evictions == 0
    assert pool.take() == second and pool.find(b"b") is None and pool.evictions == 1
    assert b"a" in pool and b"b" not in pool
    assert pool.take() == first and pool.evictions == 2


def test_twins_share_a_key_and_one_survives_the_other():
    pool = BlockPool(3)
    first, second = pool.take(), pool.take()
    pool.publish(first, b"a", b"root")
    pool.publish(second, b"a", b"root")
    assert pool.find(b"a") == second
    pool.drop(second)
    assert pool.take() == second and pool.find(b"a") == first


def test_forgetting_takes_what_grew_below_and_nothing_else():
    pool = BlockPool(8)
    chain = keyed(pool, b"a", b"b", b"c")
    branch = pool.take()
    pool.publish(branch, b"d", b"a")
    (other,) = keyed(pool, b"z")
    pool.drop(chain[2])
    assert pool.forget({b"b"}) == {b"b", b"c"}
    assert pool.find(b"b") is None and pool.find(b"c") is None
    assert pool.find(b"a") == chain[0] and pool.find(b"d") == branch and pool.find(b"z") == other
    assert chain[2] in pool.free and chain[1] not in pool.free and not pool.idle
    pool.drop(chain[1])
    assert chain[1] in pool.free


def test_clear_forgets_everything():
    pool = BlockPool(4)
    first, second = keyed(pool, b"a", b"b")
    pool.drop(second)
    pool.clear()
    assert b"a" not in pool and b"b" not in pool and second in pool.free and pool.refs[first] == 1
