"""One request of a workload, as plain data: when it comes, how long it is, what it shares with others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """at: seconds after the start. shared: leading stretches of the input, (identity, tokens) each; those of
    two jobs that begin alike are the same tokens so far. What `shared` leaves of the input is the job's own."""

    at: float
    input_tokens: int
    output_tokens: int
    shared: tuple[tuple[int, int], ...] = ()
