"""Runs one request of either endpoint: prompts into engine streams, deltas into choices, choices into answers.

A Style says how the endpoint spells its choices; everything else, usage and streaming included, is the same here.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.engine.outputs import PositionLogprobs, StreamDelta
from octavo.errors import EngineError
from octavo.request import FinishReason, SamplingParams
from octavo.server.exchange import Exchange, event
from octavo.server.openai.streams import EngineStream, merged
from octavo.server.port import TextEngine
from octavo.types import digest


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: tuple[int, ...]
    text: str | None = None  # what the client wrote, None for ids and templates


@dataclass(slots=True)
class Choice:
    """One output so far. `fresh`: nothing of it was sent yet."""

    index: int
    prompt: Prompt
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    fresh: bool = True

    def add(self, delta: StreamDelta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class Style(Protocol):
    """How an endpoint spells a choice, whole and in pieces."""

    prefix: str  # of ids
    whole_object: str
    chunk_object: str

    def whole(self, choice: Choice) -> dict[str, Any]: ...
    def chunks(self, choice: Choice, delta: StreamDelta) -> list[dict[str, Any]]:
        """Choice objects for what is new; the choice has it already."""

    def extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Fields of the whole answer, or of its first chunk."""


@dataclass(frozen=True, slots=True)
class Job:
    llm: TextEngine
    model: str  # the served name, also where the client asked for "default"
    prompts: list[Prompt]
    params: list[SamplingParams]  # per prompt: what fits differs
    style: Style
    stream: bool
    include_usage: bool
    salt: str
    tenant: str
    request_id: str

    async def run(self, exchange: Exchange) -> None:
        """Answers the exchange. Raises RequestError before anything was sent."""
        streams = [EngineStream(self._begin(place)) for place in range(len(self.prompts))]
        try:
            for stream in streams:
                await stream.open()
            choices = [
                Choice(place * params.n + child, self.prompts[place])
                for place, params in enumerate(self.params)
                for child in range(params.n)
            ]
            if self.stream:
                await exchange.stream(self._events(streams, choices))
            else:
                await exchange.answer(await self._whole(streams, choices))
        finally:
            for stream in streams:
                await stream.close()

    async def _whole(self, streams: Sequence[EngineStream], choices: Sequence[Choice]) -> dict[str, Any]:
        async with aclosing(merged(streams)) as deltas:
            async for place, delta in deltas:
                self._take(choices, place, delta)
        for choice in choices:
            choice.prompt_logprobs = choices[choice.index - choice.index % self.params[0].n].prompt_logprobs
        head = self._head(self.style.whole_object) | self.style.extras(choices)
        whole = [self.style.whole(choice) for choice in choices]
        return head | {"choices": whole, "usage": self._usage(choices)}

    async def _events(self, streams: Sequence[EngineStream], choices: Sequence[Choice]) -> AsyncGenerator[bytes, None]:
        head = self._head(self.style.chunk_object)
        usage: dict[str, Any] = {"usage": None} if self.include_usage else {}
        first = True
        async with aclosing(merged(streams)) as deltas:
            async for place, delta in deltas:
                choice = self._take(choices, place, delta)
                for shown in self.style.chunks(choice, delta):
                    more = self.style.extras(choices) if first else {}
                    choice.fresh = first = False
                    yield event(head | more | {"choices": [shown]} | usage)
        if self.include_usage:
            yield event(head | {"choices": [], "usage": self._usage(choices)})

    def _take(self, choices: Sequence[Choice], place: int, delta: StreamDelta) -> Choice:
        if delta.finish_reason == "error":
            raise EngineError(f"the engine failed: {delta.stop_reason or 'see the log'}")
        if delta.finish_reason == "abort":
            raise EngineError("the request was aborted by the server", code="aborted")
        choice = choices[place * self.params[place].n + delta.index]
        choice.add(delta)
        return choice

    def _begin(self, place: int) -> AsyncGenerator[StreamDelta, None]:
        prompt, params = self.prompts[place], self.params[place]
        if params.max_tokens == 0 and params.prompt_logprobs is None:
            return _nothing(params.n)
        return self.llm.stream(prompt.ids, params, request_id=self.request_id, tenant=self.tenant, salt=self.salt)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.style.prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": fingerprint(self.llm),
        }

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        prompt = sum(len(prompt.ids) for prompt in self.prompts)
        output = sum(len(choice.token_ids) for choice in choices)
        cached = sum(choice.cached_tokens for choice in choices if choice.index % self.params[0].n == 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def fingerprint(llm: TextEngine) -> str:
    """What equality of outputs is relative to: model and numerics id."""
    return "fp_" + hashlib.sha256(f"{llm.info.name} {llm.info.numerics}".encode()).hexdigest()[:12]


def cache_salt(tenant: str, key: str) -> str:
    """Prefixes are shared within one tenant and one prompt_cache_key."""
    return digest(tenant, key).hex() if tenant or key else ""


async def _nothing(n: int) -> AsyncGenerator[StreamDelta, None]:
    for child in range(n):
        yield StreamDelta(child, "", (), finish_reason="length")
