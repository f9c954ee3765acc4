"""Every drafter (kinds.py) changes no bit of what a model says: ids and log-probabilities are those of plain decoding,
greedy and sampled, with penalties, truncations and masks; alone, among mates, under a load that changes."""

import pytest

from exactness import heads, kinds
from exactness.harness import House, check, company, prompts, request
from exactness.test_exactness import fresh


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = kinds.world(name, tmp_path_factory.mktemp("world"))
        return made[name]

    return get


@pytest.fixture(scope="module", params=kinds.KINDS)
def opened(request, worlds, tmp_path_factory):
    """(kind, world, options -> a house with a drafter of the kind, watched)"""
    kind = kinds.KINDS[request.param]
    world = worlds(kind.world)
    make = kind.make(world, tmp_path_factory.mktemp("drafter") / "made")

    def open_house(**options):
        limits = {name: value for name, value in options.items() if name.startswith(("max_", "block_"))}
        drafter = heads.Watched(make(heads.open_target(world.model, **limits)))
        return House(world.model, drafter=drafter, **options), drafter

    return kind, world, open_house


def held(house, run, world, *, ids=None):
    check(run, world.run, ids=ids)
    found = {name: scores for name, scores in heads.logprobs(house).items() if name in world.scores}
    assert found == world.scores


def told(kind, drafter, run):
    """The drafts were worth a proof: many came true two and more at a time, some beside an older sibling."""
    if not kind.adaptive:
        assert run.stats["drafts_rejected"] > 10
        assert drafter.drafted > 20 and drafter.deep >= kind.deep * drafter.drafted
        assert drafter.aside >= 4 if kind.branches else drafter.aside == 0


def test_alone(opened):
    kind, world, open_house = opened
    house, drafter = open_house(enable_prefix_caching=False, threads=1)
    steps = 0
    for one in heads.asked():
        run = house.run([one])
        assert run.outputs[one.id] == world.outputs[one.id]
        assert heads.logprobs(house).get(one.id) == world.scores.get(one.id)
        steps += run.stats["steps"]
    house.close()
    assert drafter.deep > 10 or kind.adaptive
    assert steps < 0.92 * sum(map(len, world.outputs.values())) or kind.adaptive


def test_among_mates(opened):
    """Seventeen at once, prompts in pieces; and again, with what the cache has of them."""
    kind, world, open_house = opened
    house, drafter = open_house(max_num_batched_tokens=37, poison=True, threads=2)
    first = house.run([*heads.asked(), *company(heads.VOCAB, 1, 4)])
    held(house, first, world, ids=world.outputs)
    told(kind, drafter, first)
    assert first.stats["chunks"] > 1
    again = house.run(fresh(heads.asked()))
    held(house, again, world)
    assert again.stats["hits"] >= 5
    house.close()


def test_under_a_load_that_changes(opened):
    """They come one after the other, some mates leave, plans are outstanding, and long outputs leave too few blocks."""
    kind, world, open_house = opened
    house, _ = open_house(num_blocks=kind.blocks, plans_outstanding=2, max_num_batched_tokens=64, poison=True)
    mates = company(heads.VOCAB, 3, 5, tokens=30)
    long = [request(f"long{i}", p, tokens=90) for i, p in enumerate(prompts(heads.VOCAB, (20, 40, 60), seed=12))]

    def leaving(house, turn):
        if turn in (9, 17, 30):
            house.abort(mates[turn % 3].id)

    run = house.run([*long, *heads.asked(), *mates], each_turn=leaving, every=2)
    held(house, run, world, ids=world.outputs)
    assert run.stats["preemptions"] >= 1 and (run.stats["drafts_rejected"] > 5 or kind.adaptive)
    house.close()


def test_large_blocks_and_few_rows(opened):
    kind, world, open_house = opened
    house, _ = open_house(block_tokens=32, max_logit_rows=24, threads=1)
    run = house.run(heads.asked())
    held(house, run, world)
    assert run.stats["drafts_rejected"] > 3 or kind.adaptive
    house.close()
