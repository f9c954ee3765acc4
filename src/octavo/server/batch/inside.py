"""A request to the server's application from inside its process."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp

from octavo.server.exchange import headers_of

_LOG = logging.getLogger(__name__)


async def post(app: ASGIApp, path: str, body: bytes) -> tuple[int, str, bytes]:
    """(status, request id, body of the answer). Cancelling is what a client does that leaves."""
    parts: list[bytes] = []
    start: dict[str, Any] = {}
    sent = iter(({"type": "http.request", "body": body, "more_body": False},))

    async def receive() -> dict[str, Any]:
        for message in sent:
            return message
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    head = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    pairs = [(name.encode(), value.encode()) for name, value in head.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "headers": pairs,
        "query_string": b"",
        "state": {},
    }
    try:
        await app(scope, receive, send)
    except Exception:
        if not start:
            raise
        _LOG.exception("a fault in %s", path)  # the answer says no more than that there was one
    return start["status"], headers_of(start).get("x-request-id", ""), b"".join(parts)
