"""HTTP/1.1 for many streams at once: connections that are kept and used again, parsed by httptools, on one event loop.

No limit on connections: a request that is due is sent, whatever is still open.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from octavo.errors import UsageError


class Sink(Protocol):
    """Gets one response, in parts."""

    def head(self, status: int, content_type: str) -> None: ...

    def body(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is. prefix: what stands before /chat/completions, `/v1` unless the address says otherwise."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises UsageError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise UsageError(f"not an address: {url!r} (write http://127.0.0.1:8737)", param="url")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/") or "/v1")

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.netloc}{self.prefix}"


class Connection(asyncio.Protocol):
    """One request at a time. `idle` while it may take one."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self._type = ""
        self._heard = False
        self._to_the_end = True  # the response has no length: the end of the connection is its end
        self.idle = False

    async def ask(self, request: bytes, sink: Sink) -> bool:
        """Until the response is complete; False when the server had closed a kept connection before it saw the request.

        Raises OSError, ValueError for what is no HTTP.
        """
        if self._transport is None or self._transport.is_closing():
            return False
        self.idle, self._heard, self._to_the_end, self._sink = False, False, True, sink
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        except ConnectionError:
            if self._heard:
                raise
            return False
        finally:
            self._sink = None
            if not self.idle:
                self.close()
        return True

    def close(self) -> None:
        self.idle = False
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.idle = transport, True

    def data_received(self, data: bytes) -> None:
        if self._sink is None or self._parser is None:
            self.close()  # nobody asked
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._settle(ValueError(str(error)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle = False
        whole = exc is None and self._heard and self._to_the_end
        self._settle(None if whole else ConnectionResetError("the server closed the connection"))

    def _settle(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    # ---- httptools
    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._type = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._to_the_end = False

    def on_headers_complete(self) -> None:
        assert self._sink is not None and self._parser is not None
        self._sink.head(self._parser.get_status_code(), self._type)

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.body(data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.idle = bool(self._parser.should_keep_alive())
        self._settle(None)


class Client:
    """headers: of every request, beside those of HTTP itself."""

    def __init__(self, address: Address, headers: dict[str, str]) -> None:
        self.address = address
        fields = {"Host": address.netloc, "User-Agent": "octavo-load", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._tls = ssl.create_default_context() if address.tls else None
        self._kept: list[Connection] = []

    async def post(self, path: str, body: bytes, sink: Sink) -> None:
        """Raises OSError, ValueError."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await self._ask(f"POST {self.address.prefix}{path} HTTP/1.1\r\n{self._head}{length}".encode() + body, sink)

    async def get(self, path: str, sink: Sink) -> None:
        """Raises OSError, ValueError."""
        await self._ask(f"GET {self.address.prefix}{path} HTTP/1.1\r\n{self._head}\r\n".encode(), sink)

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

    async def _ask(self, request: bytes, sink: Sink) -> None:
        """A kept connection that the server closes at this very moment is no failure: a new one follows."""
        while self._kept:
            connection = self._kept.pop()
            if connection.idle and await connection.ask(request, sink):
                break
        else:
            connection = await self._connect()
            if not await connection.ask(request, sink):
                raise ConnectionResetError("the server closed the connection without an answer")
        if connection.idle:
            self._kept.append(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.address.host, self.address.port, ssl=self._tls)
        return connection
