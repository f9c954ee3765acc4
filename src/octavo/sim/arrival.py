"""One request as the simulator has it: a job of a workload, and the tokens that stand for its prompt."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.workload.job import Job

RUN_IDS = 512  # ids that one identity has to itself; longer runs use those of several
OWN = 2**29  # ids from here to 2^30 are of no run


@dataclass(frozen=True, slots=True)
class Arrival:
    """number: tells its own tokens from those of others. abort_after: seconds after which its client is gone."""

    job: Job
    number: int
    tenant: str = ""
    priority: int = 0
    abort_after: float | None = None

    @property
    def at(self) -> float:
        return self.job.at

    @property
    def prompt_tokens(self) -> int:
        return self.job.input_tokens

    @property
    def output_tokens(self) -> int:
        return self.job.output_tokens

    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids in which runs of one identity are equal and all else differs."""
        ids: list[int] = []
        for identity, tokens in self.job.shared:
            first = identity * RUN_IDS % OWN
            ids.extend(range(first, first + tokens))
        left = self.job.input_tokens - len(ids)
        first = OWN + self.number * RUN_IDS % OWN
        ids.extend(range(first, first + left))
        return tuple(ids)
