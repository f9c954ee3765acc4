"""Drafters that draw, under rules that ask what from: outputs are distributed as the model says, by chi-square (p >
0.001, fixed seeds); a greedy request has its text; without such a rule nothing is drawn."""

import math

import numpy as np
import pytest
from chance import chi_square

from exactness import drawing, heads, kinds
from exactness.harness import House
from octavo.drafters.drawn import drawn

DRAWS = 900
# Kind -> the rule that its drafts are tried by: under block, trees are as under residual.
DRAWN = {
    "model": ("residual", "block"),
    "ngramlm": ("residual", "block"),
    "mtp apart": ("residual", "block"),
    "mtp": ("residual", "block"),
    "two mtp layers": ("residual", "block"),
    "mtp with shared keys": ("block",),
    "medusa": ("residual",),
    "recurrent, a tree": ("residual",),
    "eagle1, a tree": ("residual",),
    "eagle3, a tree": ("residual",),
    "eagle3, a chain": ("block",),
    "eagle3, some tokens": ("residual",),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """World and what its model says, by name, made when they are wanted."""
    made = {}

    def get(name):
        if name not in made:
            world = kinds.world(name, tmp_path_factory.mktemp("world"))
            made[name] = world, drawing.expected(world.model)
        return made[name]

    return get


class Heard:
    """A drafter with how many of its drafts said what they were drawn from, and how many did not."""

    def __init__(self, inner):
        self.inner = inner
        self.drawn = self.plain = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def propose(self, session, rows):
        proposals = self.inner.propose(session, rows)
        for proposal in proposals:
            told = sum(chances is not None for chances in proposal.chances)
            self.drawn, self.plain = self.drawn + told, self.plain + len(proposal.token_ids) - told
            for chances, token in zip(proposal.chances, proposal.token_ids, strict=False):
                assert chances is None or (token in chances and math.isclose(sum(chances.values()), 1.0))
        return proposals


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, rules in DRAWN.items() for rule in rules])
def test_outputs_are_distributed_as_the_model_says(worlds, name, rule, tmp_path):
    kind = kinds.KINDS[name]
    world, chances = worlds(kind.world)
    drafter = Heard(kind.make(world, tmp_path / "drafter")(heads.open_target(world.model, verify=rule)))
    counts, accepted, rejected = drawing.counted(world.model, drafter, rule, DRAWS)
    statistic, point = drawing.held(counts, chances)
    assert statistic < point, (statistic, point)
    assert accepted > DRAWS / 8 and rejected > DRAWS / 8
    assert drafter.drawn > DRAWS / 2
    assert name == "ngramlm" or drafter.plain == 0, "what was drawn is told"


@pytest.mark.parametrize("name", ["model", "mtp apart", "medusa", "recurrent, a tree", "eagle3, a tree"])
def test_a_greedy_request_draws_nothing_and_has_its_text(worlds, name, tmp_path):
    kind = kinds.KINDS[name]
    world, _ = worlds(kind.world)
    drafter = Heard(kind.make(world, tmp_path / "drafter")(heads.open_target(world.model, verify="residual")))
    house = House(world.model, drafter=drafter, threads=1, verify="residual")
    greedy = [one for one in heads.asked() if one.params.greedy]
    run = house.run(greedy)
    house.close()
    assert run.outputs == {one.id: world.outputs[one.id] for one in greedy}
    assert drafter.plain > 20 and drafter.drawn == 0


def test_draws_without_replacement():
    """Pairs of draws beside their chances, q(x) q(y) / (1 - q(x)); a mass of nothing is never drawn."""
    q = [0.5, 0.25, 0.2, 0.05]
    choices = [(token, math.log(chance)) for token, chance in enumerate(q)] + [(9, -2000.0)]
    [one] = heads.asked()[:1]
    counts = np.zeros((4, 4))
    for root in range(20_000):
        picked = drawn(choices, one, root, 0, 2)
        (first, logprob), (second, _) = picked.choices
        counts[first, second] += 1
        assert math.isclose(logprob, math.log(q[first])) and picked.chances.keys() == {0, 1, 2, 3}
    pairs = np.array([[q[x] * q[y] / (1 - q[x]) if x != y else 0.0 for y in range(4)] for x in range(4)])
    statistic, point = chi_square(counts, pairs * 20_000)
    assert statistic < point
    assert len(drawn(choices, one, 0, 0, 9).choices) == 4
    places = {drawn(choices, one, 0, place, 4).choices[0][0] for place in range(40)}
    assert places >= {0, 1, 2}, "every place has draws of its own"
