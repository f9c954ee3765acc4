"""Workloads out of distributions. Equal seeds give equal jobs; each trait draws from a generator of its own, so that to
change one changes no other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.workload.arrivals import Kind, arrivals
from octavo.workload.job import Job
from octavo.workload.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Synthetic:
    """rate: requests per second; None: all at 0, for loops that send when an answer is there. The first prefix_tokens
    of each input are those of one of prefix_groups groups."""

    input_tokens: Lengths
    output_tokens: Lengths
    rate: float | None = None
    kind: Kind = "poisson"
    burstiness: float = 1.0
    prefix_tokens: int = 0
    prefix_groups: int = 1
    seed: int = 0

    def jobs(self) -> Iterator[Job]:
        """Without end."""
        times, inputs, outputs, groups = (
            random.Random(f"{self.seed} {trait}") for trait in ("times", "inputs", "outputs", "groups")
        )
        moments = None if self.rate is None else arrivals(self.kind, self.rate, times, self.burstiness)
        while True:
            length = self.input_tokens.next(inputs)
            group = groups.randrange(self.prefix_groups)
            yield Job(
                at=0.0 if moments is None else next(moments),
                input_tokens=length,
                output_tokens=self.output_tokens.next(outputs),
                shared=((group, min(self.prefix_tokens, length)),) if self.prefix_tokens else (),
            )
