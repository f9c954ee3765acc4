"""When requests come: gaps between arrivals of a given mean rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, get_args

from octavo.errors import UsageError

Kind = Literal["poisson", "gamma", "constant"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def arrivals(kind: Kind, rate: float, rng: random.Random, burstiness: float = 1.0) -> Iterator[float]:
    """Seconds after the start, without end; rate in requests per second.

    burstiness, of gamma alone: the squared coefficient of variation of the gaps; 1 is Poisson, more comes in bursts,
    less is more regular. Raises UsageError.
    """
    if not 0 < rate < 1e6:
        raise UsageError(f"the rate must be above 0 requests a second, not {rate:g}", param="rate")
    if not 0 < burstiness < 1e6:
        raise UsageError(f"burstiness must be above 0, not {burstiness:g}", param="burstiness")
    now = 0.0
    while True:
        yield now
        if kind == "constant":
            now += 1 / rate
        elif kind == "poisson":
            now += rng.expovariate(rate)
        else:
            now += rng.gammavariate(1 / burstiness, burstiness / rate)
