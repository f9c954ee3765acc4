"""The door: header limits, keys, Host names and the request id, before any route is looked at.

A key is asked for on every path but OPEN_PATHS, and only headers carry one. The path is the one that routes are chosen
by, never one that is put together with what a client sent beside it. Wrong keys are counted by address.
"""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.attempts import Attempts
from octavo.server.config import ServerConfig
from octavo.server.exchange import Exchange, headers_of
from octavo.server.failures import HttpError
from octavo.server.page import FILES

OPEN_PATHS = frozenset(("/health/live", *FILES))  # need no key


class Guard:
    """ASGI middleware. Puts `tenant` and `request_id`, which is its own, into the scope's state."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config
        self._attempts = Attempts(config.wrong_keys_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        request_id = secrets.token_hex(8)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            tenant = self._admit(scope, headers)
        except HttpError as error:
            await Exchange(scope, receive, named, self._config).fail(error)
            return
        scope["state"]["tenant"] = tenant
        await self._app(scope, receive, named)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> str:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > self._config.max_headers or size > self._config.max_header_bytes:
            raise HttpError(431, "headers_too_large", "the headers are too many or too large")
        tenant = "" if scope["path"] in OPEN_PATHS else self._owner(scope, _key(headers))
        host = _without_port(headers.get("host", ""))
        if self._config.allowed_hosts and host not in self._config.allowed_hosts:
            raise HttpError(400, "host_not_allowed", f"host {host[:128]!r} is not served here: see --allowed-host")
        return tenant

    def _owner(self, scope: Scope, key: str) -> str:
        tenant = self._config.tenant(key)
        if self._config.keys and key:
            address, _ = scope.get("client") or ("", 0)
            seconds = self._attempts.wait(address, tenant)
            if seconds:
                message = f"too many wrong API keys from this address; try again in {seconds} s"
                raise HttpError(429, "too_many_wrong_keys", message, retry_after=seconds)
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
