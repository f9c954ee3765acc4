"""How the server is reached: address, keys, limits. Frozen; keys are held as digests only."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.errors import ConfigError, MissingFileError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Sizes in bytes, times in seconds. allowed_hosts: names that a Host header may carry, empty for any.

    max_queued_requests, max_queued_tokens: sequences and prompt tokens that may wait for their first output; without
    the second, what is computed in queue_seconds as measured. max_key_requests: requests that a key may have open.
    keep_prompts: what is known of a request holds its prompt. metrics_alias: further names of the metrics.
    """

    host: str = "127.0.0.1"
    port: int = 8737
    key_digests: tuple[bytes, ...] = ()
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
    queue_seconds: float = 60.0
    max_key_requests: int | None = None
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
        max_queued_requests: int = 256,
        max_queued_tokens: int | None = None,
        max_key_requests: int | None = None,
        keep_prompts: bool = False,
        metrics_alias: Literal["vllm"] | None = None,
        admin_socket: str | None = None,
        environ: Mapping[str, str],
    ) -> ServerConfig:
        """Keys come from a file and from OCTAVO_API_KEY, never from arguments that `ps` shows.

        allowed_hosts: names beside those of this machine; without any, an address beyond loopback takes all. Raises
        ConfigError for an address beyond loopback without a key.
        """
        digests = tuple(key_digest(key) for key in _keys(api_key_file, environ))
        local = _is_loopback(host)
        names = (*LOOPBACK_NAMES, *(name.lower() for name in allowed_hosts)) if local or allowed_hosts else ()
        if not local and not digests and not insecure_no_auth:
            raise ConfigError(
                f"{host} can be reached from other machines: give OCTAVO_API_KEY or --api-key-file, "
                "or say --insecure-no-auth",
                code="key_required",
            )
        if not 0 <= port <= 65535:
            raise ConfigError(f"port {port} is not in [0, 65535]")
        given = {
            "max_queued_requests": max_queued_requests,
            "max_queued_tokens": max_queued_tokens,
            "max_key_requests": max_key_requests,
        }
        for name, value in given.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}", param=name)
        return cls(
            host=host,
            port=port,
            key_digests=digests,
            allowed_hosts=names,
            max_queued_requests=max_queued_requests,
            max_queued_tokens=max_queued_tokens,
            max_key_requests=max_key_requests,
            keep_prompts=keep_prompts,
            metrics_alias=metrics_alias,
            admin_socket=admin_socket,
        )

    def tenant(self, key: str) -> str | None:
        """Name of the key's owner; "" where no key is needed, None for a key that is wrong. Constant time per key."""
        if not self.key_digests:
            return ""
        given = key_digest(key)
        equal = [hmac.compare_digest(given, known) for known in self.key_digests]
        return given.hex()[:16] if any(equal) else None


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _keys(file: str | None, environ: Mapping[str, str]) -> list[str]:
    keys = [environ["OCTAVO_API_KEY"].strip()] if environ.get("OCTAVO_API_KEY", "").strip() else []
    if file is None:
        return keys
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MissingFileError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 (offset {error.start})") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise ConfigError(f"{file}: no key in it")
    return keys + found
