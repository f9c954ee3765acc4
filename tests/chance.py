"""Distributions to draw from, and what a draw of many says of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np


class Toy:
    """A spot (sampling/rules.py) over a table of chances, with numbers of a generator."""

    def __init__(self, p, numbers):
        self.p = [float(chance) for chance in p]
        self.sums = list(accumulate(self.p))
        self.uniform = None if numbers is None else numbers.__next__
        self._choice = None

    def fresh(self):
        self._choice = None
        return self

    @property
    def choice(self):
        if self._choice is None:
            self._choice = self.draw()
        return self._choice

    def draw(self):
        return bisect_right(self.sums, self.uniform() * self.sums[-1])

    def chance(self, token, least=0.0):
        return self.p[token] if self.p[token] > least else 0.0

    def apart(self, tokens):
        while (token := self.draw()) in tokens:
            pass
        return token

    def entropy(self):
        return -sum(chance * math.log(chance + 1e-5) for chance in self.p)


def numbers(seed, block=4096):
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.random(block).tolist()


class Drawn:
    """{token: chance}, to be drawn from."""

    def __init__(self, chances):
        self.chances = chances
        self._tokens = list(chances)
        self._sums = list(accumulate(chances.values()))

    def pick(self, at):
        return self._tokens[bisect_right(self._sums, at * self._sums[-1])]


def without(chances, gone):
    rest = sum(chance for token, chance in chances.items() if token not in gone)
    return {token: chance / rest for token, chance in chances.items() if token not in gone}


def random_chances(rng, size, *, sharp=1.0, holes=0.0):
    x = rng.normal(0, sharp, size)
    p = np.exp(x - x.max())
    p[rng.random(size) < holes] = 0
    if not p.any():
        p[0] = 1
    return p / p.sum()


def chi_square(counts, expected):
    """(statistic, its 99.9 % point): cells that are hardly expected are put together. By Wilson and Hilferty."""
    counts, expected = np.ravel(counts), np.ravel(expected)
    assert counts[expected == 0].sum() == 0, "what cannot come has come"
    rare = expected < 8
    cells = [*zip(counts[~rare], expected[~rare], strict=True)]
    if expected[rare].sum() > 0:
        cells.append((counts[rare].sum(), expected[rare].sum()))
    statistic = sum((got - wanted) ** 2 / wanted for got, wanted in cells)
    freedom = max(len(cells) - 1, 1)
    point = freedom * (1 - 2 / (9 * freedom) + 3.0902 * math.sqrt(2 / (9 * freedom))) ** 3
    return statistic, point
