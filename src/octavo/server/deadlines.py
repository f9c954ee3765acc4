"""How long a request may take: until its prompt is begun, until its first output, until its end.

What is too late is ended where it stands, in the engine too. A stream that has begun gets its error as its last event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from octavo.server.admission import Ticket
from octavo.server.config import ServerConfig
from octavo.server.exchange import Exchange
from octavo.server.failures import HttpError
from octavo.server.records import Record

TICK = 0.01  # seconds by which a timer may come early


class Deadlines:
    """A context around the work of one exchange, from when its body is there."""

    def __init__(self, config: ServerConfig, exchange: Exchange, ticket: Ticket) -> None:
        self._config = config
        self._exchange = exchange
        self._ticket = ticket
        self._timers: list[asyncio.TimerHandle] = []

    def __enter__(self) -> Deadlines:
        self._at(self._config.queue_timeout, self._queued)
        self._at(self._config.first_token_timeout, self._silent)
        self._at(self._config.request_timeout, self._endless)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for timer in self._timers:
            timer.cancel()

    # ---- inside
    def _at(self, seconds: float | None, act: Callable[[float], None], limit: float | None = None) -> None:
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, act, limit or seconds)
            self._timers.append(timer)

    def _queued(self, seconds: float) -> None:
        """In the engine: neither its model's load nor its template count. An embedding says nothing of its prompt."""
        state: dict[str, Any] = self._exchange.scope["state"]
        record: Record = state["record"]
        embeds = record.prompts and record.asked is None
        if embeds or not self._ticket.waits or any(course.computed for course in record.courses):
            return
        now = time.monotonic()
        waited = now - min((course.begun for course in record.courses), default=now)
        if waited < seconds - TICK:
            self._at(seconds - waited, self._queued, seconds)
        else:
            after = self._ticket.retry_after()
            message = f"the prompt was not begun within {seconds:g} s; try again in {after} s"
            self._exchange.end(HttpError(503, "queue_timeout", message, retry_after=after))

    def _silent(self, seconds: float) -> None:
        if self._ticket.waits:
            self._exchange.end(HttpError(504, "first_token_timeout", f"no output within {seconds:g} s"))

    def _endless(self, seconds: float) -> None:
        self._exchange.end(HttpError(504, "request_timeout", f"the request did not end within {seconds:g} s"))
