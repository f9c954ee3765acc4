"""EAGLE heads change no bit of what the model says, whatever runs beside it, and bring it there in fewer steps."""

import pytest

from exactness import eagle_heads, heads
from exactness.harness import House, check, subjects
from octavo.drafters.eagle import Branching, EagleDrafter
from octavo.drafters.folder import HeadFolder

SHAPES = {"tree": Branching(depth=4, width=3, nodes=10), "chain": Branching(depth=5, width=1, nodes=5)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return eagle_heads.write_model(tmp_path_factory.mktemp("quiet"))


@pytest.fixture(scope="module")
def plain(made):
    return heads.plain_run(made[0])


@pytest.fixture(scope="module", params=["eagle1", "eagle3"])
def folder(request, made, tmp_path_factory):
    return eagle_heads.write(tmp_path_factory.mktemp(request.param), *getattr(eagle_heads, request.param)(made[1]))


def opened(folder, model, shape, **options):
    target = heads.open_target(model, **options)
    return heads.Watched(EagleDrafter(HeadFolder(folder, target), target, SHAPES[shape], adaptive=False))


@pytest.mark.parametrize(
    ("shape", "condition"),
    [("tree", name) for name in heads.CONDITIONS if name != "preemption"]
    + [("chain", name) for name in ("chunks", "outstanding", "blocks")],
)
def test_eagle_changes_nothing(made, plain, folder, shape, condition):
    limits = {name: most for name, most in heads.CONDITIONS[condition].items() if name.startswith("max_")}
    drafter = opened(folder, made[0], shape, **limits)
    heads.unchanged(made[0], drafter, plain, condition)
    assert drafter.drafted > 60 and drafter.deep >= drafter.drafted / 5
    assert (drafter.aside >= 5) == (shape == "tree")


def long():
    return subjects(heads.VOCAB, tokens=70)


@pytest.fixture(scope="module")
def plain_long(made):
    house = House(made[0], threads=1)
    run = house.run(long())
    house.close()
    return run


@pytest.mark.parametrize("shape", SHAPES)
def test_preemption_changes_nothing(made, plain_long, folder, shape):
    """Outputs longer than what is held ahead of a row: requests in the way of others are computed again."""
    drafter = opened(folder, made[0], shape)
    house = House(made[0], drafter=drafter, num_blocks=30, threads=1, poison=True)
    run = house.run(long())
    assert run.stats["preemptions"] >= 1 and run.stats["drafts_accepted"] > 50
    check(run, plain_long)
    house.close()


def test_alone_it_takes_fewer_steps(made, plain, folder):
    run = plain[0]
    house = House(made[0], drafter=opened(folder, made[0], "tree"), enable_prefix_caching=False, threads=1)
    steps = 0
    for one in heads.asked():
        alone = house.run([one])
        assert alone.outputs[one.id] == run.outputs[one.id]
        steps += alone.stats["steps"]
    assert steps < 0.6 * sum(map(len, run.outputs.values()))
    house.close()
