"""The claim of the suite for every family: company, chunks, poison, hits, preemption and threads change no bit."""

import pytest

from exactness.families import FAMILIES, write_family
from exactness.harness import House, check, company, subjects
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
