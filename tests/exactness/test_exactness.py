"""Same request, same bits, whatever else runs: every condition against the plain run, on the native executor.

Each test first makes sure that its condition occurred, from the counters. Conditions: docs/architecture.md, idea 4.
"""

import pytest

from exactness.drafters import SteeredDrafter
from exactness.harness import House, check, company, prompts, request, subjects
from exactness.models import ODD, smollm2, write_odd

SIZES = {"odd": (ODD["hidden_size"], ODD["vocab_size"]), "smollm2": (576, 49152)}


@pytest.fixture(scope="module", params=["odd", "smollm2"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name, tmp_path_factory):
    return write_odd(tmp_path_factory.mktemp("odd")) if name == "odd" else smollm2()


@pytest.fixture(scope="module")
def vocab(name):
    return SIZES[name][1]


def fresh(requests):
    """The same requests, not yet run."""
    return [replace_request(each) for each in requests]


def replace_request(each):
    return type(each)(each.id, each.prompt_ids, each.params, seed=each.seed, priority=each.priority)


@pytest.fixture(scope="module")
def plain(model, vocab):
    """Each subject alone, nothing reused: what everything else is compared with."""
    house = House(model, enable_prefix_caching=False)
    runs = [house.run([each]) for each in subjects(vocab)]
    house.close()
    merged = runs[0]
    for run in runs[1:]:
        merged.outputs |= run.outputs
        merged.rows |= run.rows
    assert len({tuple(ids) for ids in merged.outputs.values()}) > len(runs) // 2, "the model says one thing only"
    return merged


@pytest.mark.parametrize("mates", [1, 6, 32])
def test_in_company(model, vocab, plain, mates):
    house = House(model, enable_prefix_caching=False)
    for subject in subjects(vocab)[-3:]:
        run = house.run([subject, *company(vocab, mates, mates)])
        assert len(run.outputs) == mates + 1
        check(run, plain, ids=[subject.id])
    house.close()


@pytest.mark.parametrize("budget", [1, 5, 16, 512])
def test_chunks(model, vocab, plain, budget):
    house = House(model, max_num_batched_tokens=budget, enable_prefix_caching=False)
    long = [request("long", prompt, tokens=2) for prompt in prompts(vocab, [900], seed=3) if budget > 100]
    run = house.run([*subjects(vocab), *long])
    assert run.stats["chunks"] > 1
    check(run, plain, ids=plain.outputs)
    house.close()


@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads_and_block_sizes(model, vocab, plain, threads, block_tokens):
    house = House(model, threads=threads, block_tokens=block_tokens, num_blocks=9600 // block_tokens)
    check(house.run(subjects(vocab)), plain)
    house.close()


def test_prefix_hits(model, vocab, plain):
    house = House(model)
    first = house.run(subjects(vocab))
    second = house.run(fresh(subjects(vocab)))
    assert second.stats["hits"] >= 8 and second.stats["full_hits"] >= 3 and second.stats["cached_tokens"] > 400
    check(first, plain)
    check(second, plain)
    house.close()


def test_answer_becomes_prompt(model, vocab, plain):
    """A generated token read back from the cache as part of a longer prompt is the token computed afresh."""
    house = House(model)
    subject = subjects(vocab, tokens=40)[7]
    answer = house.run([subject]).outputs[subject.id]
    follow = request("follow", (*subject.prompt_ids, *answer, 5, 6), tokens=8)
    warm = house.run([follow])
    assert warm.stats["cached_tokens"] > len(subject.prompt_ids)
    house.close()
    cold = House(model, enable_prefix_caching=False)
    check(warm, cold.run([replace_request(follow)]))
    cold.close()


def test_preemption(model, vocab, plain):
    house = House(model, num_blocks=14)
    run = house.run(subjects(vocab))
    assert run.stats["preemptions"] >= 1
    check(run, plain)
    house.close()


def test_poisoned_blocks(model, vocab, plain):
    house = House(model, poison=True, max_num_batched_tokens=100)
    check(house.run(subjects(vocab)), plain)
    house.poison()  # freed blocks too; nothing may be found in them
    for pool in house.parts.scheduler.ledger.pools:
        pool.forget(set(pool._by_key))
    again = house.run([*fresh(subjects(vocab)), *company(vocab, 12, 3)])
    check(again, plain, ids=plain.outputs)
    house.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_plans_outstanding(model, vocab, plain, depth):
    house = House(model, plans_outstanding=depth, max_num_batched_tokens=64)
    run = house.run(subjects(vocab))
    assert run.stats["chunks"] > 1
    check(run, plain)
    house.close()


def test_aborted_neighbours(model, vocab, plain):
    """Neighbours are aborted at every turn of the subject's life, in each state that they can be in."""
    house = House(model, max_num_batched_tokens=48, num_blocks=60)
    mates = company(vocab, 14, 9, tokens=30)
    waiting = [mate.id for mate in mates]

    def each_turn(house, turn):
        if waiting:
            house.abort(waiting.pop(turn % len(waiting)))

    chosen = subjects(vocab)[3:8]
    run = house.run([*chosen, *mates], each_turn=each_turn)
    assert sum(reason == "abort" for reason in run.reasons.values()) >= 5
    check(run, plain, ids=[each.id for each in chosen])
    house.close()


@pytest.mark.parametrize("mode", ["right", "wrong", "tree"])
def test_drafts(name, model, vocab, plain, mode):
    drafter = SteeredDrafter(mode, plain.outputs, *SIZES[name])
    house = House(model, drafter=drafter, poison=True)
    run = house.run(subjects(vocab))
    accepted, rejected = run.stats["drafts_accepted"], run.stats["drafts_rejected"]
    assert drafter.runs > 3 and drafter.forgotten == set(plain.outputs)
    assert accepted > 0 and (rejected > 0 or mode == "right")
    assert run.stats["copies"] > 0 or mode != "tree"
    check(run, plain)
    again = house.run(fresh(subjects(vocab)))
    assert again.stats["hits"] > 0
    check(again, plain)
    house.close()


def test_i8_cache(tmp_path):
    """The same with keys and values in int8: company, chunks, poison, hits, trees of drafts."""
    model, vocab = write_odd(tmp_path), ODD["vocab_size"]
    house = House(model, kv_dtype="i8", enable_prefix_caching=False)
    plain = house.run([subjects(vocab)[0]])
    for each in subjects(vocab)[1:]:
        run = house.run([each])
        plain.outputs |= run.outputs
        plain.rows |= run.rows
    assert "/kv-i8/" in house.parts.runner.loaded.numerics
    house.close()
    crowd = House(model, kv_dtype="i8", poison=True, max_num_batched_tokens=37, block_tokens=32)
    check(crowd.run([*subjects(vocab), *company(vocab, 12, 3)]), plain, ids=plain.outputs)
    again = crowd.run(fresh(subjects(vocab)))
    assert again.stats["hits"] > 0
    check(again, plain)
    crowd.close()
    drafter = SteeredDrafter("tree", plain.outputs, *SIZES["odd"])
    trees = House(model, kv_dtype="i8", drafter=drafter, poison=True, threads=1)
    run = trees.run(subjects(vocab))
    assert run.stats["drafts_accepted"] > 0 and run.stats["copies"] > 0
    check(run, plain)
    trees.close()


def test_seeds_decide_and_nothing_else(model, vocab):
    house = House(model)
    [prompt] = prompts(vocab, [30], seed=5)
    pair = [request(f"r{seed}-{i}", prompt, temperature=1.2, seed=seed) for seed in (1, 2) for i in (0, 1)]
    run = house.run(pair)
    assert run.outputs["r1-0"] == run.outputs["r1-1"] and run.outputs["r2-0"] == run.outputs["r2-1"]
    assert run.outputs["r1-0"] != run.outputs["r2-0"]
    house.close()
