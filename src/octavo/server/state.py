"""What the server is doing: serving, draining, or left by its engine."""

from __future__ import annotations

from octavo.errors import OctavoError
from octavo.server.failures import HttpError
from octavo.server.port import Living


class ServerState:
    """draining: no new work is taken, what runs ends. engine_error: why the engine stopped while serving."""

    def __init__(self) -> None:
        self.draining = False
        self.engine_error: OctavoError | None = None

    def fault(self, served: Living) -> str | None:
        """Why no new work is taken, None while it is."""
        if self.draining:
            return "the server is shutting down"
        return "the engine has stopped" if served.error is not None else None

    def admit(self, served: Living) -> None:
        fault = self.fault(served)
        if fault is not None:
            raise HttpError(503, "not_ready", fault)
