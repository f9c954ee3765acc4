"""What a machine needs at least for an operator: seconds, by the limit that binds them.

Pure arithmetic over costs (cost.py) and roofs. An operator's least time is the largest of what it needs: its weights
read front to back and its cached keys and values in pages, both at the footprint of the whole step, its values in the
caches of the cores, its products, and the barrier behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octavo.program.rules import Cost

LIMITS = ("weights", "cache", "values", "products", "barrier")
Curve = tuple[tuple[int, float], ...]  # (footprint in bytes, bytes a second), ascending


@dataclass(frozen=True, slots=True)
class Roofs:
    """Bytes a second of weights and of cached pages at the step's footprint; of values, by theirs. products: kind ->
    operations a second. barrier: seconds of one."""

    footprint: int
    weights: float
    cache: float
    values: Callable[[float], float]
    products: Mapping[str, float]
    barrier: float


def least_seconds(cost: Cost, product: tuple[str, float], roofs: Roofs, *, barrier: bool) -> dict[str, float]:
    """By limit. product: what cost.op_product says of the operator. barrier: whether one stands behind it."""
    kind, times = product
    return {
        "weights": cost.weight_bytes / roofs.weights,
        "cache": cost.cache_bytes / roofs.cache,
        "values": cost.value_bytes / roofs.values(cost.value_bytes),
        "products": cost.flops * times / roofs.products[kind] if cost.flops else 0.0,
        "barrier": roofs.barrier if barrier else 0.0,
    }


def at(curve: Sequence[tuple[int, float]], footprint: float) -> float:
    """The curve at a footprint: straight between its points in the logarithm of the footprint, flat beyond its ends."""
    low = curve[0]
    for high in curve:
        if footprint <= high[0]:
            if footprint <= low[0] or high == low:
                return high[1]
            share = math.log(footprint / low[0]) / math.log(high[0] / low[0])
            return low[1] + share * (high[1] - low[1])
        low = high
    return low[1]
