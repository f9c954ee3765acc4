"""How large the cache is made, and what the capacity table says of it."""

from dataclasses import fields, replace
from inspect import signature

import pytest
from tiny_model import LONGEST

from octavo import LLM
from octavo.config import EngineConfig
from octavo.errors import MissingFileError, ResourceError, UnsupportedError, UsageError
from octavo.runner.capacity import Capacity, Demand, num_snapshots, size, usable_blocks

DEMAND = Demand(
    block_bytes=1000, block_tokens=16, weights_bytes=50_000, memory_free=150_000, max_num_seqs=4, max_model_len=160
)


def test_a_share_of_what_the_weights_leave():
    assert usable_blocks(DEMAND) == 40  # never more than 4 requests of 10 blocks
    tight = Demand(1000, 16, 50_000, 70_000, 4, 160)
    assert usable_blocks(tight) == 11  # 60 % of 20,000 bytes, one block of it the null block


def test_what_the_user_says_wins():
    assert usable_blocks(DEMAND, kv_memory=6_000) == 5
    assert usable_blocks(DEMAND, kv_memory=6_000, num_blocks=77) == 77


def test_recurrent_state_is_paid_from_the_same_memory():
    """4 slots of 5,000 bytes, and of 4,000 bytes each as many snapshots as a quarter of the cache holds, at most 8."""
    demand = replace(DEMAND, slot_bytes=5_000, snapshot_bytes=4_000)
    assert num_snapshots(DEMAND) == 0
    assert num_snapshots(demand) == 3  # of 60,000 bytes
    assert usable_blocks(demand) == 60 - 20 - 12 - 1
    assert num_snapshots(demand, kv_memory=40_000) == 2 and usable_blocks(demand, kv_memory=40_000) == 40 - 20 - 8 - 1
    assert num_snapshots(replace(demand, memory_free=2**30)) == 8
    assert usable_blocks(demand, num_blocks=30) == 30
    with pytest.raises(ResourceError, match=r"recurrent state: 4 requests and 1 snapshots.*--max-num-seqs"):
        usable_blocks(demand, kv_memory=23_000)
    with pytest.raises(ResourceError, match="--num-blocks"):
        usable_blocks(demand, num_blocks=80)


def test_no_room_is_said_with_the_numbers():
    with pytest.raises(ResourceError, match=r"50000 of weights.*--kv-memory") as caught:
        usable_blocks(Demand(1000, 16, 50_000, 51_000, 4, 160))
    assert caught.value.exit_code == 69


@pytest.mark.parametrize(
    ("asked", "flag"), [({"kv_memory": 100_001}, "--kv-memory"), ({"num_blocks": 100}, "--num-blocks")]
)
def test_more_than_is_free_is_refused(asked, flag):
    with pytest.raises(ResourceError, match=f"lower {flag}"):
        usable_blocks(DEMAND, **asked)


def test_table():
    table = Capacity.of(
        weights_bytes=98 << 20, kv_bytes_per_token=23040, num_blocks=512, block_tokens=16, max_model_len=8192
    )
    assert table.kv_tokens == 8192 and table.requests == {1024: 8, 4096: 2, 8192: 1}
    assert ("weights", "98.0 MiB") in table.rows() and ("requests at 1,024 tokens", "8") in table.rows()
    short = Capacity.of(weights_bytes=1, kv_bytes_per_token=1, num_blocks=512, block_tokens=16, max_model_len=100)
    assert short.requests == {100: 73}


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")])
def test_sizes_for_people(amount, text):
    assert size(amount) == text


def test_the_engine_is_as_large_as_it_says(make_llm):
    llm = make_llm(num_blocks=None, kv_memory=1 << 20)
    info = llm.info
    assert info.num_blocks == (1 << 20) // (info.kv_bytes_per_token * info.block_tokens) - 1
    assert llm.stats().blocks_total == info.num_blocks and info.kv_tokens == info.num_blocks * 16
    assert info.max_model_len == 256 and info.weights_bytes > 0


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"max_num_seqs": 0}, UsageError, "max_num_seqs"),
        ({"block_tokens": -1}, UsageError, "block_tokens"),
        ({"num_blocks": 8.5}, UsageError, "num_blocks"),
        ({"enable_prefix_caching": "no"}, UsageError, "enable_prefix_caching"),
        ({"plans_outstanding": 65}, UsageError, "plans_outstanding"),
        ({"max_model_len": LONGEST + 1}, UsageError, "max_model_len"),
        ({"executor": "abacus"}, UnsupportedError, "executor"),
        ({"dtype": "float64"}, UnsupportedError, "dtype"),
        ({"isa": "avx2"}, UnsupportedError, "isa"),
        ({"kv_dtype": "i4"}, UsageError, "kv_dtype"),
        ({"activations": "i9"}, UsageError, "activations"),
    ],
)
def test_wrong_limits_name_the_flag(model, options, error, field):
    with pytest.raises(error) as caught:
        LLM(model, **{"executor": "reference", "num_blocks": 8, **options})
    assert caught.value.param == field


def test_every_field_of_the_configuration_is_a_keyword():
    assert {field.name for field in fields(EngineConfig)} <= set(signature(LLM).parameters)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(MissingFileError):
        LLM(str(tmp_path / "nowhere"))


def test_a_class_that_fails_its_self_check_is_noted(model, monkeypatch):
    native = pytest.importorskip("octavo.backends.native.executor")
    best = native.available_isas()[-1]
    if best == "portable":
        pytest.skip("this machine has no second class")
    monkeypatch.delenv("OCTAVO_ISA", raising=False)
    monkeypatch.setattr(native._native, "isa_self_check", lambda isa: native.ISAS[isa] != best)
    with LLM(model, threads=1, num_blocks=8) as llm:
        assert llm.info.isa != best and any(best in note for note in llm.info.notes)
