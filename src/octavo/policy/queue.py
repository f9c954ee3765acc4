"""WaitingQueue: who is next. Lower priority number first; in it the preempted, then tenants in turn, each by arrival.

A class that was passed over PATIENCE times in a row gets the next turn, so that no class waits for ever.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count

from octavo.request import Request

PATIENCE = 32

Place = tuple[float, int, Request]  # arrival, order of coming, request: the first two are unique


class PriorityClass:
    """Requests of one priority. resumed: preempted ones, by arrival; tenants: in the order of their next turn."""

    __slots__ = ("passed", "resumed", "tenants")

    def __init__(self) -> None:
        self.resumed: list[Place] = []
        self.tenants: OrderedDict[str, list[Place]] = OrderedDict()
        self.passed = 0

    def __iter__(self) -> Iterator[Request]:
        for place in self.resumed:
            yield place[2]
        lines = list(self.tenants.values())
        depth = 0
        while lines := [line for line in lines if len(line) > depth]:
            for line in lines:
                yield line[depth][2]
            depth += 1

    def __bool__(self) -> bool:
        return bool(self.resumed or self.tenants)


class WaitingQueue:
    def __init__(self) -> None:
        self._classes: dict[int, PriorityClass] = {}
        self._places: dict[str, Place] = {}
        self._resumed: set[str] = set()
        self._order = count()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._places

    def push(self, request: Request) -> None:
        """At the end of its tenant's line, by arrival."""
        place = self._places[request.id] = (request.arrival, next(self._order), request)
        tenants = self._class(request.priority).tenants
        insort(tenants.setdefault(request.tenant, []), place)

    def push_front(self, request: Request) -> None:
        """A preempted request goes before every newcomer of its class."""
        place = self._places[request.id] = (request.arrival, next(self._order), request)
        insort(self._class(request.priority).resumed, place)
        self._resumed.add(request.id)

    def order(self) -> Iterator[Request]:
        """Requests in the order in which they would be taken. Lazy: nothing is taken or added while it is read."""
        ranks = sorted(self._classes)
        starved = next((rank for rank in reversed(ranks) if self._classes[rank].passed >= PATIENCE), None)
        first = None if starved is None else next(iter(self._classes[starved]))
        if first is not None:
            yield first
        for rank in ranks:
            for request in self._classes[rank]:
                if request is not first:
                    yield request

    def take(self, request: Request) -> None:
        """The request is admitted: its tenant goes to the end of the ring, worse classes were passed over once more."""
        self.remove(request)
        line = self._classes.get(request.priority)
        if line is not None:
            line.passed = 0
            if request.tenant in line.tenants:
                line.tenants.move_to_end(request.tenant)
        for rank, other in self._classes.items():
            if rank > request.priority:
                other.passed += 1

    def remove(self, request: Request) -> None:
        place = self._places.pop(request.id)
        line = self._classes[request.priority]
        if request.id in self._resumed:
            self._resumed.discard(request.id)
            line.resumed.remove(place)
        else:
            line.tenants[request.tenant].remove(place)
            if not line.tenants[request.tenant]:
                del line.tenants[request.tenant]
        if not line:
            del self._classes[request.priority]

    def _class(self, priority: int) -> PriorityClass:
        return self._classes.setdefault(priority, PriorityClass())
