"""A generation as OpenAI's endpoints answer it: choices, whole or in chunks, and usage.

A Style says how the endpoint spells its choices; everything else, usage and streaming included, is the same here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from octavo.engine.outputs import StreamDelta
from octavo.server.call import Choice, Generation, Outputs, Prefill, Usage
from octavo.server.exchange import Exchange
from octavo.server.face import event
from octavo.server.openai.shapes import ToldUsage
from octavo.server.port import TextEngine

PROGRESS_SECONDS = 0.25  # between two words on how far a prompt is


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
    generation: Generation
    style: Style
    stream: bool
    told_usage: ToldUsage
    told_progress: bool = False

    async def run(self, exchange: Exchange) -> None:
        """Answers the exchange. Raises RequestError before anything was sent."""
        async with self.generation.running() as outputs:
            if self.stream:
                await exchange.stream(self._events(outputs))
            else:
                await exchange.answer(await self._whole(outputs))

    async def _whole(self, outputs: Outputs) -> dict[str, Any]:
        choices = await outputs.finished()
        head = self._head(self.style.whole_object) | self.style.extras(choices)
        whole = [self.style.whole(choice) for choice in choices]
        return head | {"choices": whole, "usage": spelled(outputs.usage)}

    async def _events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        head = self._head(self.style.chunk_object)
        usage: dict[str, Any] = {} if self.told_usage == "never" else {"usage": None}
        first = True
        async with aclosing(outputs.deltas()) as deltas:
            async for item in self._with_progress(deltas) if self.told_progress else deltas:
                if isinstance(item, Prefill):
                    yield event(head | {"choices": [], "prompt_progress": asdict(item)} | usage)
                    continue
                choice, delta = item
                for shown in self.style.chunks(choice, delta):
                    more = self.style.extras(outputs.choices) if first else {}
                    choice.fresh = first = False
                    if self.told_usage == "always":
                        usage = {"usage": spelled(outputs.usage)}
                    yield event(head | more | {"choices": [shown]} | usage)
        if usage:
            yield event(head | {"choices": [], "usage": spelled(outputs.usage)})

    async def _with_progress(
        self, deltas: AsyncGenerator[tuple[Choice, StreamDelta], None]
    ) -> AsyncGenerator[tuple[Choice, StreamDelta] | Prefill, None]:
        """Until the first output, now and then how far the prompts are, where that has changed."""
        first = asyncio.ensure_future(anext(deltas, None))
        told = 0
        try:
            while not first.done():
                await asyncio.wait((first,), timeout=PROGRESS_SECONDS)
                prefill = self.generation.prefill()
                if prefill.processed > told:
                    told = prefill.processed
                    yield prefill
            if (item := await first) is not None:
                yield item
        finally:
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await first
        async for item in deltas:
            yield item

    def _head(self, kind: str) -> dict[str, Any]:
        llm = self.generation.call.llm
        return {
            "id": f"{self.style.prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": llm.info.name,  # also where the client asked for "default"
            "system_fingerprint": fingerprint(llm),
        }


def spelled(usage: Usage) -> dict[str, Any]:
    """What became of drafts is said where there were any."""
    shown = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
    drafts = usage.drafts
    if drafts.proposed:
        shown["completion_tokens_details"] = {
            "accepted_prediction_tokens": drafts.accepted,
            "rejected_prediction_tokens": drafts.proposed - drafts.accepted,
        }
    return shown


def fingerprint(llm: TextEngine) -> str:
    """What equality of outputs is relative to: model and numerics id."""
    return "fp_" + hashlib.sha256(f"{llm.info.name} {llm.info.numerics}".encode()).hexdigest()[:12]
