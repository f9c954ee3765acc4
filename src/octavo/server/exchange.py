"""One HTTP exchange: reads a JSON body within bounds, answers JSON or a stream of events, ends when the client goes.

One task waits for the client to vanish, for plain answers and streams alike; it cancels the work, which closes the
engine's streams and so frees their blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError, RequestError
from octavo.server.config import ServerConfig
from octavo.server.face import face_of
from octavo.server.failures import HttpError, internal_error

_CLOSING = frozenset((408, 413))  # the rest of the body is not read


def headers_of(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def _cancelled(task: asyncio.Future[None]) -> None:
    """Ends a task that may be done, and raises what it raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Exchange:
    """The three ASGI arguments, and what an endpoint may do with them."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, config: ServerConfig) -> None:
        self.scope = scope
        state: Mapping[str, str] = scope.get("state", {})
        self.tenant = state.get("tenant", "")
        self.request_id = state.get("request_id", "")
        self._face = face_of(scope["path"])
        self._receive = receive
        self._send_raw = send
        self._config = config
        self._started = False
        self._work: asyncio.Future[None] | None = None
        self._ended: OctavoError | None = None  # by the operator
        self._last_sent = time.monotonic()

    async def read_json(self) -> dict[str, Any]:
        """The body as an object. Raises HttpError (408, 413, 415), RequestError."""
        headers = headers_of(self.scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpError(415, "unsupported_media_type", f"content-type is application/json, not {kind or 'absent'}")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(415, "unsupported_media_type", "a compressed body is not accepted")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._config.max_body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._config.body_seconds):
                body = await self._read()
        except TimeoutError:
            seconds = self._config.body_seconds
            raise HttpError(408, "request_timeout", f"the body did not arrive within {seconds:g} s") from None
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from None
        if not isinstance(value, dict):
            raise RequestError("the body is a JSON object", code="invalid_json")
        return value

    async def answer(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        await self.answer_bytes(msgspec.json.encode(value), "application/json", status, headers)

    async def answer_bytes(
        self, body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        fields = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
        await self._start(status, fields)
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, error: OctavoError, headers: Mapping[str, str] | None = None) -> None:
        """An error answer; once a stream has begun, an error event that ends it."""
        body = self._face.body(error, self.request_id)
        if self._started:
            await self._body(self._face.failure(body), more=False)
            return
        headers = dict(headers or {})
        if error.http_status in _CLOSING:
            headers["connection"] = "close"
        if error.http_status == 401:
            headers["www-authenticate"] = "Bearer"
        if error.http_status in (429, 503):
            headers["retry-after"] = str(getattr(error, "retry_after", None) or 1)
        await self.answer(body, error.http_status, headers)

    async def stream(self, events: AsyncGenerator[bytes, None]) -> None:
        """Events as they come, framed as they are, with a ping when nothing else was sent for a while."""
        fields = {"content-type": self._face.media, "cache-control": "no-cache"}
        await self._start(200, fields | {"x-accel-buffering": "no"})
        ping = asyncio.create_task(self._ping())
        try:
            async with aclosing(events):
                async for data in events:
                    await self._body(data)
            await self._body(self._face.end, more=False)
        finally:
            ping.cancel()

    async def until_gone(self, work: Awaitable[None]) -> None:
        """Runs the work; a client that leaves cancels it. Its errors become answers, and so does the server's end."""
        task = self._work = asyncio.ensure_future(self._guarded(work))
        gone = asyncio.create_task(self._gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            await _cancelled(task)
            if self._ended is not None:
                await self.fail(self._ended)
        except asyncio.CancelledError:
            await _cancelled(task)
            await self.fail(HttpError(503, "shutting_down", "the server is shutting down"))
        finally:
            gone.cancel()

    def end(self, error: OctavoError) -> None:
        """From outside, at any moment: the work stops and this is its answer."""
        if self._work is not None and not self._work.done():
            self._ended = error
            self._work.cancel()

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except OctavoError as error:
            await self.fail(error)
        except RecursionError:  # nothing of ours recurses but over what a body holds
            await self.fail(RequestError("the body is nested too deeply", code="invalid_json"))
        except ConnectionError:
            return
        except Exception:
            await self.fail(internal_error())
            raise

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _read(self) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise HttpError(400, "client_gone", "the client left before its body was complete")
            body += message.get("body", b"")
            if len(body) > self._config.max_body:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> HttpError:
        return HttpError(413, "request_too_large", f"the body is larger than {self._config.max_body} bytes")

    async def _ping(self) -> None:
        while self._face.ping:
            idle = time.monotonic() - self._last_sent
            if idle >= self._config.ping_seconds:
                await self._body(self._face.ping)
                idle = 0.0
            await asyncio.sleep(self._config.ping_seconds - idle)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self._started = True
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _body(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _send(self, message: dict[str, Any]) -> None:
        """Raises ConnectionError for a client that does not read."""
        try:
            async with asyncio.timeout(self._config.send_seconds):
                await self._send_raw(message)
        except TimeoutError:
            raise ConnectionError("the client does not read") from None
        self._last_sent = time.monotonic()
