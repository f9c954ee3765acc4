"""Costs as sums over features of a step, found by asking a cost rule: a step is then priced without walking operators.

Features: 1, rows, logit rows, keys that rows attend to, cached entries that are read; the last two within a window.
A rule that is no such sum is told by further shapes, and is asked again at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from octavo.program.cost import attended
from octavo.program.rules import Cost
from octavo.types import StepShape

Features = tuple[int, int, int, int, int]

_ASKED = (
    StepShape((1,), (0,), 0),
    StepShape((1,), (0,), 1),
    StepShape((1,), (9,), 0),
    StepShape((2,), (0,), 0),
    StepShape((1, 1), (0, 0), 0),
    # beyond every window
    StepShape((700,), (0,), 3),
    StepShape((3, 1, 40), (100, 70_000, 5_000), 2),
)


def features(shape: StepShape, window: int) -> Features:
    if shape.tokens == shape.requests:  # one row each: a row reads what it attends to
        if window:
            keys = sum([min(context + 1, window) for context in shape.contexts])
        else:
            keys = sum(shape.contexts) + shape.tokens
        return 1, shape.tokens, shape.logit_rows, keys, keys
    read = 0
    for rows, context in zip(shape.rows, shape.contexts, strict=True):
        read += min(context + rows, rows + window - 1) if window else context + rows
    return 1, shape.tokens, shape.logit_rows, attended(shape, window), read


def find(cost: Callable[[StepShape], Cost], window: int) -> Callable[[Features], Cost] | None:
    """The rule as a sum over the features of `window`; None when it is none."""
    rows = [features(shape, window) for shape in _ASKED]
    costs = [cost(shape) for shape in _ASKED]
    columns = []
    for name in ("flops", "weight_bytes", "cache_bytes", "value_bytes"):
        solved = _solve(rows[:5], [getattr(one, name) for one in costs])
        if solved is None or any(factor.denominator != 1 for factor in solved):
            return None
        columns.append(tuple(int(factor) for factor in solved))

    def priced(of: Features) -> Cost:
        return Cost(*[sum([a * b for a, b in zip(column, of, strict=True)]) for column in columns])

    return priced if [priced(of) for of in rows] == costs else None


def _solve(rows: Sequence[Features], values: Sequence[int]) -> list[Fraction] | None:
    """Of a square system; None when it has no single solution."""
    table = [[Fraction(x) for x in (*row, value)] for row, value in zip(rows, values, strict=False)]
    size = len(table)
    for column in range(size):
        pivot = next((row for row in range(column, size) if table[row][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        head = table[column]
        for row in range(size):
            if row != column and table[row][column]:
                ratio = table[row][column] / head[column]
                table[row] = [a - ratio * b for a, b in zip(table[row], head, strict=True)]
    return [table[row][size] / table[row][row] for row in range(size)]
