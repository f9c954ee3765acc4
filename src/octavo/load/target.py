"""The endpoint under load: how a job becomes a request, and what the server says of itself."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from octavo.errors import ResourceError, UsageError
from octavo.load.http import Address, Client
from octavo.load.prose import Prose
from octavo.load.stream import WholeReader
from octavo.workload.job import Job

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Target:
    """extra: further fields of every body. exact: outputs have the wanted length, by ignore_eos, which not every server
    knows."""

    address: Address
    model: str
    endpoint: Endpoint = "chat"
    exact: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "/chat/completions" if self.endpoint == "chat" else "/completions"

    def body(self, job: Job, number: int, prose: Prose, *, stream: bool = True) -> bytes:
        text = prose.prompt(job, number)
        fields: dict[str, Any] = {"model": self.model, "max_tokens": job.output_tokens, "stream": stream}
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": text}]
        else:
            fields["prompt"] = text
        if stream:
            fields["stream_options"] = {"include_usage": True}
        if self.exact:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields | dict(self.extra))


async def served_model(client: Client) -> str:
    """The first model that the server lists. Raises ResourceError, UsageError."""
    reader = WholeReader()
    await _reached(client, lambda: client.get("/models", reader))
    if reader.status != 200:
        raise ResourceError(f"{client.address.url}/models: {reader.refusal()}", code="load_refused")
    try:
        return str(msgspec.json.decode(reader.data)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise UsageError(f"{client.address.url}/models lists no model: give --model", param="model") from None


async def probe(client: Client, target: Target, job: Job, number: int, prose: Prose) -> None:
    """One request that nobody counts: what the server refuses is seen before the run. Raises ResourceError."""
    reader = WholeReader()
    await _reached(client, lambda: client.post(target.path, target.body(job, number, prose, stream=False), reader))
    if reader.status != 200:
        raise ResourceError(f"{client.address.url}{target.path}: {reader.refusal()}", code="load_refused")


async def _reached(client: Client, ask: Callable[[], Coroutine[None, None, None]]) -> None:
    try:
        await ask()
    except (OSError, ValueError) as error:
        message = f"{client.address.url} cannot be reached: {_reason(error)}"
        raise ResourceError(message, code="load_unreachable") from None


def _reason(error: OSError | ValueError) -> str:
    """In the system's words; asyncio's own for a refused connection name addresses alone."""
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "verify_message", None) or error.reason or error)
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error)
