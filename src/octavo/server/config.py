"""How the server is reached: address, keys, limits. Frozen; keys are held as digests only."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.errors import ConfigError
from octavo.server.keys import NO_LIMITS, Key, KeyLimits, owner_of, read_keys

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Sizes in bytes, times in seconds. allowed_hosts: names that a Host header may carry, empty for any.

    max_queued_requests, max_queued_tokens: sequences and prompt tokens that may wait for their first output; without
    the second, what is computed in backlog_seconds as measured. key_limits: of every key, where it has none of its own.
    wrong_keys_per_minute: of one address, 0 for any number. queue_, first_token_, request_timeout: until a prompt is
    begun, its first output is there, its request has ended; None for no bound. keep_prompts: what is known of a request
    holds its prompt. metrics_alias: further names of the metrics.
    """

    host: str = "127.0.0.1"
    port: int = 8737
    keys: tuple[Key, ...] = ()
    allowed_hosts: tuple[str, ...] = LOOPBACK_NAMES
    max_body: int = 8 << 20
    max_header_bytes: int = 16 << 10
    max_headers: int = 100
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    ping_seconds: float = 15.0
    send_seconds: float = 60.0
    drain_seconds: float = 30.0
    max_queued_requests: int = 256
    max_queued_tokens: int | None = None
    backlog_seconds: float = 60.0
    key_limits: KeyLimits = NO_LIMITS
    wrong_keys_per_minute: int = 20
    queue_timeout: float | None = None
    first_token_timeout: float | None = None
    request_timeout: float | None = None
    keep_prompts: bool = False
    metrics_alias: Literal["vllm"] | None = None
    admin_socket: str | None = None

    @classmethod
    def of(
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 8737,
        api_key_file: str | None = None,
        insecure_no_auth: bool = False,
        allowed_hosts: Sequence[str] = (),
        max_key_requests: int | None = None,
        max_key_queued_tokens: int | None = None,
        key_requests_per_minute: int | None = None,
        key_tokens_per_minute: int | None = None,
        environ: Mapping[str, str],
        **more: Any,
    ) -> ServerConfig:
        """Keys come from a file and from OCTAVO_API_KEY, never from arguments that `ps` shows.

        allowed_hosts: names beside those of this machine; without any, an address beyond loopback takes all. more:
        fields as they are. Raises ConfigError for an address beyond loopback without a key.
        """
        keys = read_keys(api_key_file, environ)
        local = _is_loopback(host)
        names = (*LOOPBACK_NAMES, *(name.lower() for name in allowed_hosts)) if local or allowed_hosts else ()
        if not local and not keys and not insecure_no_auth:
            raise ConfigError(
                f"{host} can be reached from other machines: give OCTAVO_API_KEY or --api-key-file, "
                "or say --insecure-no-auth",
                code="key_required",
            )
        limits = KeyLimits(
            max_requests=max_key_requests,
            max_queued_tokens=max_key_queued_tokens,
            requests_per_minute=key_requests_per_minute,
            tokens_per_minute=key_tokens_per_minute,
        )
        return cls(host=host, port=port, keys=keys, allowed_hosts=names, key_limits=limits, **more).checked()

    def checked(self) -> ServerConfig:
        """Raises ConfigError."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not in [0, 65535]")
        for name in ("max_queued_requests", "max_queued_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}", param=name)
        if self.wrong_keys_per_minute < 0:
            raise ConfigError(f"wrong_keys_per_minute is 0 or more, not {self.wrong_keys_per_minute}")
        for name in ("queue_timeout", "first_token_timeout", "request_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0, not {value:g}", param=name)
        self.key_limits.checked("of a key: ")
        return self

    def tenant(self, key: str) -> str | None:
        """Name of the key's owner; "" where no key is needed, None for a key that is wrong. Constant time per key."""
        return owner_of(key, self.keys) if self.keys else ""

    def limits(self, tenant: str) -> KeyLimits:
        own = (key.limits for key in self.keys if key.owner == tenant)
        return next(own, NO_LIMITS).over(self.key_limits)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
