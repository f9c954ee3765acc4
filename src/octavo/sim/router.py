"""Which replica a request goes to: in turn, to the least loaded, or where the beginning of its prompt was computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, Protocol

from octavo.sim.arrival import Arrival
from octavo.sim.replica import Replica

Rule = Literal["turn", "load", "prefix"]
RULES: tuple[Rule, ...] = ("turn", "load", "prefix")


class Router(Protocol):
    def choose(self, arrival: Arrival, replicas: Sequence[Replica]) -> Replica: ...


class InTurn:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, arrival: Arrival, replicas: Sequence[Replica]) -> Replica:
        self._next += 1
        return replicas[(self._next - 1) % len(replicas)]


class ByLoad:
    """The fewest prompt tokens that wait, then the fewest requests, then the first."""

    def choose(self, arrival: Arrival, replicas: Sequence[Replica]) -> Replica:
        return min(replicas, key=lambda one: (one.queued_tokens, one.load, one.number))


class ByPrefix:
    """The least work that is left: prompt tokens that wait there and those of this prompt that it has not seen.

    It remembers which runs it sent where, as many as the cache of a replica holds, the latest first: an estimate, as a
    router without the replicas' help has it.
    """

    def __init__(self, runs: int) -> None:
        self._most = max(runs, 1)
        self._seen: dict[int, OrderedDict[int, None]] = {}

    def choose(self, arrival: Arrival, replicas: Sequence[Replica]) -> Replica:
        chosen = min(replicas, key=lambda one: (self._left(arrival, one), one.load, one.number))
        seen = self._seen.setdefault(chosen.number, OrderedDict())
        for identity, _ in arrival.job.shared:
            seen[identity] = None
            seen.move_to_end(identity)
        while len(seen) > self._most:
            seen.popitem(last=False)
        return chosen

    def _left(self, arrival: Arrival, replica: Replica) -> int:
        seen = self._seen.get(replica.number, ())
        left = arrival.prompt_tokens
        for identity, tokens in arrival.job.shared:
            if identity not in seen:
                break
            left -= tokens
        return replica.queued_tokens + left


def router(rule: Rule, runs: int) -> Router:
    """runs: of shared prompts, how many one replica's cache holds."""
    if rule == "prefix":
        return ByPrefix(runs)
    return InTurn() if rule == "turn" else ByLoad()
