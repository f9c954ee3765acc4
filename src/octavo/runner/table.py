"""Which requests the runner serves: request id -> Request, until the engine forgets it.

A plan names ids; it may be in flight while its request ends, and the id may come back for another request. So a step
keeps the Requests it was launched with, and `alive` tells whether one of them is still wanted. Steps mostly name the
same requests as the step before: what is known of them together is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.drafters.port import Drafter
from octavo.request import Request, Row
from octavo.sampling.sampler import Cohort, Sampler


@dataclass(slots=True)
class Mates:
    """The requests of a step, in its order; None for ids that had ended by then. version: RequestTable's, then."""

    ids: list[str]
    requests: list[Request | None]
    version: int
    _asked: bool = False
    _cohort: Cohort = None
    _served: list[Request] | None = None
    places: list[int] = field(default_factory=list)  # of those that a drafter serves, once `served` was asked
    _processed: bool | None = None

    @property
    def processed(self) -> bool:
        """Whether any has a function of its caller's over its logits."""
        if self._processed is None:
            self._processed = any(
                request is not None and request.params.logits_processor is not None for request in self.requests
            )
        return self._processed

    def served(self, drafter: Drafter) -> list[Request]:
        """Those that it serves; asked once."""
        if self._served is None:
            alive = [(place, request) for place, request in enumerate(self.requests) if request is not None]
            wanted = [(place, request) for place, request in alive if drafter.serves(request)]
            self.places = [place for place, _ in wanted]
            self._served = [request for _, request in wanted]
        return self._served

    def cohort(self, sampler: Sampler) -> Cohort:
        """See Sampler.cohort; asked once, and again after `part`."""
        if not self._asked:
            requests = [request for request in self.requests if request is not None]
            self._cohort = sampler.cohort(requests) if len(requests) == len(self.ids) else None
            self._asked = True
        return self._cohort

    def part(self) -> None:
        """They are sampled one by one in this step: what their cohort has counted of outputs ends here."""
        if self._cohort is not None:
            self._asked, self._cohort = False, None


class RequestTable:
    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self._mates = Mates([], [], 0)
        self.version = 0  # times that a request came or left: unchanged since a launch, all of its requests are alive

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def names(self) -> list[str]:
        return list(self._requests)

    def add(self, request: Request) -> None:
        self._requests[request.id] = request
        self.version += 1

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def mates(self, rows: Sequence[Row]) -> Mates:
        ids = [row.request_id for row in rows]
        if self._mates.version != self.version or self._mates.ids != ids:
            self._mates = Mates(ids, [self._requests.get(name) for name in ids], self.version)
        return self._mates

    def alive(self, request: Request | None) -> bool:
        return request is not None and self._requests.get(request.id) is request

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self.version += 1
        self._mates = Mates([], [], self.version)
