"""HTTP on one connection: uvicorn's protocol with bounds on what comes before a request's body.

A request's line and headers have to be there within a time, counted from the connection or from their first byte, and
to be small: the rest is answered by 408 or 431 and the connection closed. An idle connection, a half-open one and one
that sends a byte a second all end so, and hold neither memory nor a place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError, openai_body


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, limits: ServerConfig, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._reading = True  # a request's line and headers, or nothing of it yet
        self._head_bytes = 0  # that came meanwhile

    @classmethod
    def within(cls, limits: ServerConfig) -> Callable[..., HttpToolsProtocol]:
        """A factory as uvicorn's Config takes one for `http`."""

        def made(
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> BoundedProtocol:
            return cls(limits, config=config, server_state=server_state, app_state=app_state, _loop=_loop)

        return made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._reading:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._reading:
            return
        if self._deadline is None:  # the next request of a connection that is kept
            self._expect_head()
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse(431, "headers_too_large", "the headers are too large")

    def on_headers_complete(self) -> None:
        self._reading, self._head_bytes = False, 0
        self._head_is_there()
        super().on_headers_complete()

    def on_message_begin(self) -> None:
        self._reading = True
        super().on_message_begin()

    # ---- inside
    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._limits.header_seconds, self._too_slow)

    def _head_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        seconds = self._limits.header_seconds
        self._refuse(408, "request_timeout", f"the headers did not arrive within {seconds:g} s")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Once nothing else is being answered on this connection."""
        self._head_is_there()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = msgspec.json.encode(openai_body(HttpError(status, code, message), ""))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
