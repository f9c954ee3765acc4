"""Which requests the runner serves: request id -> Request, until the engine forgets it.

A plan names ids; it may be in flight while its request ends, and the id may come back for another request. So a step
keeps the Request it was launched with, and `alive` tells whether that very request is still wanted.
"""

from __future__ import annotations

from octavo.request import Request


class RequestTable:
    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self.forgotten = 0  # times that a request left: unchanged since a launch, all of its requests are alive

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests[request.id] = request

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def alive(self, request: Request | None) -> bool:
        return request is not None and self._requests.get(request.id) is request

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self.forgotten += 1
