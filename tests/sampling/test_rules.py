"""Residual and block verification leave the target's distribution as it is: chi-square over many draws, p > 0.001, with
fixed seeds; mean acceptance by the formula; what is typical; ties, ends and empty rests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chance import Drawn, Toy, chi_square, numbers, random_chances

from octavo.sampling.rules import DELTA, EPSILON, RULES, Tree, Verdict, block, residual, typical

DRAWS = 200_000


def sparse(p):
    return {token: float(chance) for token, chance in enumerate(p) if chance > 0}


def chain(tokens, chances):
    return Tree(tuple(tokens), tuple(range(len(tokens))), tuple(chances))


def held(counts, p, draws=DRAWS):
    statistic, point = chi_square(np.asarray(counts), np.asarray(p) * draws)
    assert statistic < point, (statistic, point)


CASES = {
    "random": {"size": 24},
    "sharp": {"size": 40, "sharp": 4.0},
    "truncated": {"size": 64, "holes": 0.6},
    "disjoint": {"size": 16},
    "same": {"size": 16},
    "sure": {"size": 8},
}


def pair(case, rng):
    p, q = random_chances(rng, **CASES[case]), random_chances(rng, **CASES[case])
    if case == "disjoint":
        p[::2] = 0
        q[1::2] = 0
    if case == "sure":
        p = np.eye(len(p))[3]
    p, q = p / p.sum(), q / q.sum()
    return p, p if case == "same" else q


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rule", [residual, block])
def test_one_draw_from_any_q(rule, case):
    rng = np.random.default_rng(sum(case.encode()))
    p, q = pair(case, rng)
    draws = DRAWS if case == "random" and rule is residual else DRAWS // 10
    chances, drawn, source = sparse(q), numbers(1), numbers(2)
    own, spot, after = Drawn(chances), Toy(p, source), Toy([1.0], source)
    counts, accepted = [0] * len(p), 0
    for _ in range(draws):
        token = own.pick(next(drawn))
        verdict = rule(chain([token], [chances]), [spot.fresh(), after].__getitem__)
        accepted += len(verdict.path)
        counts[token if verdict.path else verdict.token] += 1
    held(counts, p, draws)
    alpha = float(np.minimum(p, q).sum())
    assert accepted / draws == pytest.approx(alpha, abs=4 * math.sqrt(0.25 / draws))


def context(size, seed):
    """p and q of the next token after each token; 0 stands before the first."""
    rng = np.random.default_rng(seed)
    return (
        [random_chances(rng, size, sharp=1.5) for _ in range(size)],
        [random_chances(rng, size, sharp=1.5, holes=0.2) for _ in range(size)],
    )


@pytest.mark.parametrize(("rule", "deterministic"), [(residual, False), (residual, True), (block, False)])
def test_the_joint_distribution_of_what_comes_next(rule, deterministic):
    """Two tokens of steps with two drafts each, all of them dependent on what stands before."""
    size, p, q = 4, *context(4, seed=5)
    if deterministic:
        q = [np.eye(size)[int(np.argmax(row))] for row in p]
    chances = [sparse(row) for row in q]
    own = [Drawn(each) for each in chances]
    told = [None if deterministic else each for each in chances]
    source, drawn = numbers(3), numbers(4)
    places = [[Toy(row, source) for row in p] for _ in range(3)]
    counts = np.zeros((size, size))
    for _ in range(DRAWS):
        text = [0]
        while len(text) < 3:
            last = text[-1]
            first = own[last].pick(next(drawn))
            second = own[first].pick(next(drawn))
            spots = [places[place][token].fresh() for place, token in enumerate((last, first, second))]
            verdict = rule(chain((first, second), (told[last], told[first])), spots.__getitem__)
            text += (first, second)[: len(verdict.path)]
            text.append(verdict.token)
        counts[text[1], text[2]] += 1
    held(counts, p[0][:, None] * np.stack(p))


@pytest.mark.parametrize("case", ["random", "truncated", "disjoint", "same", "sure"])
def test_siblings_without_replacement(case):
    """Two levels: three draws at the root, two after each of them."""
    rng = np.random.default_rng(11 + len(case))
    p, q = pair(case, rng)
    below, q_below = pair("random", rng)
    chances, chances_below = sparse(q), sparse(q_below)
    draws = DRAWS // 10
    source, picked = numbers(6), np.random.default_rng(7)
    width = min(3, len(chances))
    spots = [Toy(p, source), *(Toy(below, source) for _ in range(width))]
    spots += [Toy([1.0], source) for _ in range(2 * width)]
    parents = (0,) * width + tuple(parent for parent in range(1, width + 1) for _ in range(2))
    told = (chances,) * width + (chances_below,) * (2 * width)
    counts, after = np.zeros(len(p)), np.zeros(len(below))
    firsts = several(picked, q, draws, width)
    seconds = [several(picked, q_below, draws, 2) for _ in range(width)]
    for rows in zip(firsts, *seconds, strict=True):
        tokens = tuple(token for row in rows for token in row)
        verdict = residual(Tree(tokens, parents, told), lambda node: spots[node].fresh() if node else spots[0])
        spots[0].fresh()
        said = [*(tokens[node - 1] for node in verdict.path), verdict.token]
        counts[said[0]] += 1
        if len(said) > 1:
            after[said[1]] += 1
    held(counts, p, draws)
    held(after, below, after.sum())


def test_one_level_of_siblings_many_times():
    rng = np.random.default_rng(17)
    p, q = pair("random", rng)
    chances, source = sparse(q), numbers(6)
    spots = [Toy(p, source), *(Toy([1.0], source) for _ in range(2))]
    counts = [0] * len(p)
    for tokens in several(rng, q, DRAWS, 2):
        spots[0].fresh()
        verdict = residual(Tree(tuple(tokens), (0, 0), (chances, chances)), spots.__getitem__)
        counts[tokens[verdict.path[0] - 1] if verdict.path else verdict.token] += 1
    held(counts, p)


def several(rng, q, draws, width):
    """So many draws without replacement, `draws` times: the order of exponentials, as they race."""
    with np.errstate(divide="ignore"):
        times = rng.exponential(size=(draws, len(q))) / q
    return np.argsort(times, axis=1)[:, :width].tolist()


def test_siblings_that_nobody_drew():
    rng = np.random.default_rng(8)
    p = random_chances(rng, 20)
    best = [int(token) for token in np.argsort(-p)[:4]]
    tree, source = Tree(tuple(best), (0,) * 4, (None,) * 4), numbers(9)
    counts, accepted, draws = [0] * 20, 0, DRAWS // 10
    spots = [Toy(p, source), *(Toy([1.0], source) for _ in range(4))]
    for _ in range(draws):
        spots[0].fresh()
        verdict = residual(tree, spots.__getitem__)
        counts[best[verdict.path[0] - 1] if verdict.path else verdict.token] += 1
        accepted += bool(verdict.path)
    held(counts, p, draws)
    assert accepted / draws == pytest.approx(p[best].sum(), abs=0.02)


def acceptance(rule, p, q, most, steps):
    """Tokens a step."""
    chances, source, drawn, total = sparse(q), numbers(12), numbers(13), 0
    own, places = Drawn(chances), [Toy(p, source) for _ in range(most + 1)]
    for _ in range(steps):
        drafts = [own.pick(next(drawn)) for _ in range(most)]
        spots = [place.fresh() for place in places]
        total += len(rule(chain(drafts, [chances] * most), spots.__getitem__).path) + 1
    return total / steps


def test_mean_acceptance_is_that_of_the_formula_and_a_block_accepts_no_fewer():
    rng = np.random.default_rng(21)
    p, q = random_chances(rng, 12), random_chances(rng, 12)
    alpha, most, steps = float(np.minimum(p, q).sum()), 4, 20_000
    expected = (1 - alpha ** (most + 1)) / (1 - alpha)
    tokenwise = acceptance(residual, p, q, most, steps)
    assert tokenwise == pytest.approx(expected, abs=4 * most / 2 / math.sqrt(steps))
    assert acceptance(block, p, q, most, steps) > tokenwise + 0.02


def test_no_drafts_are_plain_decoding():
    source = numbers(1)
    for rule in RULES.values():
        spot = Toy([0.2, 0.8], source)
        assert rule(Tree((), (), ()), lambda node, spot=spot: spot) == Verdict((), spot.choice)


def test_a_full_chain_brings_what_comes_after_it():
    for rule in (residual, block):
        spots = [Toy(np.eye(4)[token], numbers(2)) for token in (1, 2, 3)]
        told = [{1: 1.0}, {2: 1.0}]
        assert rule(chain([1, 2], told), spots.__getitem__) == Verdict((1, 2), 3)


def test_a_rest_of_nothing_falls_back_to_p():
    """p and q are the same but for rounding, and the number is as unlucky as can be."""

    spot = Toy([0.25 - 1e-12, 0.75 + 1e-12], None)
    spot.uniform = lambda: 1.0
    spot._choice = 1
    assert residual(chain([0], [{0: 0.25, 1: 0.75}]), lambda node: spot) == Verdict((), 1)


def test_a_draft_that_cannot_come_is_never_accepted():
    p, source = [0.0, 0.5, 0.5], numbers(4)
    for rule in RULES.values():
        for _ in range(500):
            spots = [Toy(p, source), Toy(p, source)]
            verdict = rule(chain([0], [{0: 1.0}]), spots.__getitem__)
            assert verdict.path == () and verdict.token in (1, 2)


def test_typical_takes_the_longest_path_and_of_equal_ones_the_likeliest():
    flat, sure = [0.25] * 4, [0.97, 0.01, 0.01, 0.01]
    least = min(EPSILON, DELTA * math.exp(-Toy(flat, None).entropy()))
    assert 0.01 < least < EPSILON < 0.25
    tables = {0: flat, 1: sure, 2: flat, 4: [1.0, 0, 0, 0], 5: [0, 1.0, 0, 0], 6: [0.1, 0.6, 0.2, 0.1]}
    spots = {node: Toy(table, iter([0.5])) for node, table in tables.items()}
    # root: 0 (node 1), 1 (node 2); below 1: token 1, too unlikely (node 3); below 2: tokens 3 and 2 (nodes 4, 5)
    tree = Tree((0, 1, 1, 3, 2), (0, 0, 1, 2, 2), (None,) * 5)
    assert typical(tree, spots.__getitem__) == Verdict((2, 4), 0), "both are as likely: the first"
    likelier = {**spots, 2: Toy([0.1, 0.1, 0.5, 0.3], None)}
    assert typical(tree, likelier.__getitem__) == Verdict((2, 5), 1)


def brute(tree, tables):
    """Every path, tried."""
    best = (0, 0.0, ())
    for end in range(1, len(tree.tokens) + 1):
        path, node = [], end
        while node:
            path.append(node)
            node = tree.parents[node - 1]
        path.reverse()
        score, fine = 0.0, True
        for node in path:
            spot = tables[tree.parents[node - 1]]
            p = spot.p[tree.tokens[node - 1]]
            fine = fine and p > min(EPSILON, DELTA * math.exp(-spot.entropy()))
            score += math.log(p) if p > 0 else -math.inf
        if fine and (len(path), score) > best[:2]:
            best = (len(path), score, tuple(path))
    return best[2]


def test_typical_beside_every_path_tried():
    rng = np.random.default_rng(30)
    depths = set()
    for _ in range(300):
        count = int(rng.integers(1, 12))
        tree = Tree(
            tuple(int(token) for token in rng.integers(0, 5, count)),
            tuple(int(rng.integers(0, node + 1)) for node in range(count)),
            (None,) * count,
        )
        tables = {node: Toy(random_chances(rng, 5, sharp=2.0, holes=0.2), numbers(1)) for node in range(count + 1)}
        path = typical(tree, tables.__getitem__).path
        assert path == brute(tree, tables)
        depths.add(len(path))
    assert depths >= {0, 1, 2, 3}
