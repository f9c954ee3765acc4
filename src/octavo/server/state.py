"""What the server is doing: loading, serving, draining, or left by its engine; and which requests are open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.errors import OctavoError
from octavo.server.exchange import Exchange
from octavo.server.failures import HttpError
from octavo.server.models import Models
from octavo.server.pulse import Pulse

STALL_SECONDS = 60.0  # without a step while there is work, after which the server is not ready


@dataclass(frozen=True, slots=True)
class Running:
    """One request that is open. since: of time.monotonic."""

    exchange: Exchange
    since: float


class ServerState:
    """draining: no new work is taken, what runs ends. engine_error: why the engine stopped while serving."""

    def __init__(self) -> None:
        self.draining = False
        self.engine_error: OctavoError | None = None
        self.pulse = Pulse()
        self.open: dict[str, Running] = {}  # by request id

    def fault(self, models: Models) -> str | None:
        """Why no new work is taken, None while it is."""
        if self.draining:
            return "the server is shutting down"
        if models.error is not None:
            return "the engine has stopped"
        if (loaded := models.opening) is not None:
            return f"the model is being loaded ({loaded:.0%})"
        return None

    def stall(self, models: Models) -> str | None:
        """Why what is taken does not go on, None while it does."""
        self.pulse.look(models.engines())
        seconds, name = self.pulse.silence()
        return None if seconds < STALL_SECONDS else f"{name} has work and took no step for {seconds:.0f} s"

    def admit(self, models: Models) -> None:
        fault = self.fault(models)
        if fault is not None:
            raise HttpError(503, "not_ready", fault)

    @contextmanager
    def running(self, exchange: Exchange) -> Iterator[None]:
        self.open[exchange.request_id] = Running(exchange, time.monotonic())
        try:
            yield
        finally:
            self.open.pop(exchange.request_id, None)
