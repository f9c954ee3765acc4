"""The claim of the suite for every family: company, chunks, poison, hits, preemption and threads change no bit."""

import pytest

from exactness.drafters import SteeredDrafter
from exactness.families import FAMILIES, write_family
from exactness.harness import House, check, company, request, subjects
from exactness.test_exactness import fresh


@pytest.mark.parametrize("kv", ["bf16", "i8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_same_bits(name, kv, tmp_path):
    model, vocab = write_family(name, tmp_path), FAMILIES[name]["vocab_size"]
    chosen = subjects(vocab)
    options = {"kv_dtype": kv, "num_blocks": 200}
    house = House(model, enable_prefix_caching=False, threads=1, **options)
    plain = house.run(chosen[:1])
    for each in chosen[1:]:
        run = house.run([each])
        plain.outputs |= run.outputs
        plain.rows |= run.rows
    assert len({tuple(ids) for ids in plain.outputs.values()}) > len(chosen) // 2, "the model says one thing only"
    house.close()
    crowd = House(model, poison=True, max_num_batched_tokens=37, block_tokens=32, threads=3, **options)
    check(crowd.run([*fresh(chosen), *company(vocab, 6, 3)]), plain, ids=plain.outputs)
    again = crowd.run(fresh(chosen))
    assert again.stats["hits"] > 0
    check(again, plain)
    crowd.close()
    tight = House(model, **{**options, "num_blocks": 24})
    run = tight.run(fresh(chosen))
    assert run.stats["preemptions"] > 0
    check(run, plain)
    tight.close()


@pytest.mark.parametrize("mode", ["right", "wrong", "tree"])
def test_drafts_and_snapshots_over_recurrent_state(mode, tmp_path):
    """Drafts leave the state alone until they are accepted, and a snapshot among them is that of plain decoding."""
    config = FAMILIES["qwen3-next"]
    model, vocab = write_family("qwen3-next", tmp_path), config["vocab_size"]
    chosen = subjects(vocab, tokens=24)
    house = House(model, enable_prefix_caching=False)
    plain = house.run(chosen)
    house.close()
    drafter = SteeredDrafter(mode, plain.outputs, config["hidden_size"], vocab)
    drafted = House(model, drafter=drafter, poison=True, max_num_batched_tokens=41, threads=3)
    drafted.parts.scheduler.ledger.states.every = 1
    run = drafted.run(fresh(chosen))
    assert run.stats["drafts_accepted"] > 0 and (run.stats["drafts_rejected"] > 0 or mode == "right")
    assert run.stats["copies"] > 0 or mode != "tree"
    check(run, plain)
    told = {each.id: (*each.prompt_ids, *plain.outputs[each.id][:20]) for each in chosen}
    answers = [request(f"{name}+", tokens) for name, tokens in told.items()]
    drafter.truth = {each.id: () for each in answers}
    warm = drafted.run(answers)
    assert warm.stats["cached_tokens"] > sum(len(each.prompt_ids) // 16 * 16 for each in chosen)
    drafted.close()
    cold = House(model, enable_prefix_caching=False)
    check(warm, cold.run(fresh(answers)))
    cold.close()
