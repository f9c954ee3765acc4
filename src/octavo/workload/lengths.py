"""How long inputs and outputs are: distributions over token counts, as they are spelled on a command line."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import UsageError

HOW = "256, 100-1000, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA, exponential:MEAN; :MOST may follow the words"
LONGEST = 2**24


@dataclass(frozen=True, slots=True)
class Lengths:
    """draw: a number of any size from a generator; what comes out is whole, between 1 and `most`."""

    text: str
    draw: Callable[[random.Random], float]
    most: int = LONGEST

    def next(self, rng: random.Random) -> int:
        return max(1, min(round(self.draw(rng)), self.most))


# name -> (how many numbers it takes, the draw they make)
_KINDS: dict[str, tuple[int, Callable[..., Callable[[random.Random], float]]]] = {
    "normal": (2, lambda mean, deviation: lambda rng: rng.gauss(mean, deviation)),
    "lognormal": (2, lambda median, sigma: lambda rng: rng.lognormvariate(math.log(median), sigma)),
    "exponential": (1, lambda mean: lambda rng: rng.expovariate(1 / mean)),
}


def parse_lengths(text: str) -> Lengths:
    """Raises UsageError."""
    if re.fullmatch(r"\d{1,8}", text) and int(text) > 0:
        length = int(text)
        return Lengths(text, lambda rng: length)
    if (found := re.fullmatch(r"(\d{1,8})-(\d{1,8})", text)) and 0 < int(found[1]) <= int(found[2]):
        least, most = int(found[1]), int(found[2])
        return Lengths(text, lambda rng: rng.randint(least, most))
    name, *words = text.split(":")
    if name in _KINDS:
        count, make = _KINDS[name]
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        if len(numbers) in (count, count + 1) and all(0 < number < LONGEST for number in numbers):
            most = int(numbers[count]) if len(numbers) > count else LONGEST
            return Lengths(text, make(*numbers[:count]), most)
    raise UsageError(f"not lengths: {text!r} (write {HOW})")
