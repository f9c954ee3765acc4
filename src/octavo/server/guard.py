"""The door: header limits, Host names, keys and the request id, before any route is looked at."""

from __future__ import annotations

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import PolicyError
from octavo.server.config import ServerConfig
from octavo.server.exchange import Exchange, headers_of
from octavo.server.failures import HttpError

OPEN_PATHS = frozenset(("/health/live",))  # need no key
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Guard:
    """ASGI middleware. Puts `tenant` and `request_id` into the scope's state."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(8)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            tenant = self._admit(scope, headers)
        except (HttpError, PolicyError) as error:
            await Exchange(scope, receive, named, self._config).fail(error)
            return
        scope["state"]["tenant"] = tenant
        await self._app(scope, receive, named)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> str:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > self._config.max_headers or size > self._config.max_header_bytes:
            raise HttpError(431, "headers_too_large", "the headers are too many or too large")
        host = _without_port(headers.get("host", ""))
        if self._config.allowed_hosts and host not in self._config.allowed_hosts:
            raise PolicyError(f"host {host!r} is not served here", code="host_not_allowed")
        if scope["path"] in OPEN_PATHS:
            return ""
        tenant = self._config.tenant(_key(headers))
        if tenant is None:
            raise HttpError(401, "invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY")
        return tenant


def _without_port(host: str) -> str:
    """`[::1]:8737` -> `[::1]`."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _key(headers: dict[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
