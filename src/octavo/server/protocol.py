"""HTTP on one connection: uvicorn's protocol with bounds on what comes before a request's body.

A request's line and headers have to be there within a time, counted from the connection or from their first byte, and
to be small: the rest is answered by 408 or 431 and the connection closed. An idle connection, a half-open one and one
that sends a byte a second all end so, and hold neither memory nor a place. Whoever is refused while it sends can read
the refusal, and no connection rests without a timer that ends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError, openai_body
from octavo.server.parting import Parting

_FRAMING = (b"content-length", b"transfer-encoding")


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, limits: ServerConfig, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._reading = True  # a request's line and headers, or nothing of it yet
        self._head_bytes = 0  # that came meanwhile
        self._whole = True  # the latest request has been read to its end
        self._last = False  # the server ends, and waits for nobody
        self._data = b""  # that the parser has got last
        self._again = False  # a parser is told of a head that has been read

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
        super().connection_made(Parting(transport, self.loop, self._sends, self._limits.body_seconds))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._reading:
            self._head_bytes += len(data)
        self._data = data
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._reading:
            self._rest()
            return
        if self._deadline is None:  # the next request of a connection that is kept
            self._expect_head()
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse(431, "headers_too_large", "the headers are too large")

    def on_message_begin(self) -> None:
        if not self._again:
            self._reading, self._whole = True, False
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._again:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._again:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._again:
            return
        self._reading, self._head_bytes = False, 0
        self._no_deadline()
        if not self.url.startswith(b"/"):
            self._name_host()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._rest()

    def send_400_response(self, msg: str) -> None:
        self._whole = False
        self._refuse(400, "invalid_http", "this is no HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """An offer of another protocol is not taken up, and the request answered: nothing to warn of. What follows is
        its body, which the parser has left for that protocol: another one reads it."""
        left = sys.exception()
        rest = self._data[left.args[0] :] if left is not None else b""
        framing = [b": ".join(field) for field in self.headers if field[0] in _FRAMING]
        if framing:
            self._whole, self.cycle.more_body = False, True
            self.cycle.message_event.clear()
            self.parser = httptools.HttpRequestParser(self)
            self._again = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % b"\r\n".join(framing))
            self._again = False
        if rest:
            self.data_received(rest)

    def shutdown(self) -> None:
        self._last = True
        if self.transport.is_closing():
            self.transport.close()
        super().shutdown()

    # ---- inside
    def _sends(self) -> bool:
        """Whether a request is on its way that may be waited for."""
        return not (self._whole or self._last)

    def _rest(self) -> None:
        """Once all is answered: a time for the next request, or for the rest of one that was refused."""
        if not self.cycle.response_complete:
            return
        if self._whole:
            self._no_deadline()
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._deadline is None:
            self._unset_keepalive_if_required()
            self._deadline = self.loop.call_later(self._limits.body_seconds, self.transport.abort)

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._limits.header_seconds, self._too_slow)

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        seconds = self._limits.header_seconds
        self._refuse(408, "request_timeout", f"the headers did not arrive within {seconds:g} s")

    def _name_host(self) -> None:
        """A target with a host of its own goes before the field, which whoever looks at names sees."""
        host = httptools.parse_url(self.url).host
        if host is not None:
            self.headers[:] = [field for field in self.headers if field[0] != b"host"]
            self.headers.append((b"host", b"[%b]" % host if b":" in host else host))

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Once nothing else is being answered on this connection, or instead of an answer to the body at fault."""
        self._no_deadline()
        if self.transport.is_closing():
            return
        body_at_fault = not (self.cycle is None or self._reading or self.cycle.response_started or self.pipeline)
        if body_at_fault:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if body_at_fault or self.cycle is None or self.cycle.response_complete:
            body = msgspec.json.encode(openai_body(HttpError(status, code, message), ""))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
