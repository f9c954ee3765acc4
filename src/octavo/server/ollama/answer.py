"""Outputs of /api/chat and /api/generate: objects that grow line by line, the last with counts and times in ns."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from octavo.engine.outputs import PositionLogprobs
from octavo.server.call import Choice, Generation, Outputs, Usage
from octavo.server.exchange import Exchange
from octavo.server.face import line
from octavo.server.openai.logprobs import LogprobWriter
from octavo.text.dialects.dialect import Part, Said


class Heard(Protocol):
    """A Conversation, or text that nobody reads for calls."""

    generation: Generation

    def heard(self, choice: Choice, text: str) -> list[Part]: ...
    def call_id(self) -> str: ...


class RawText:
    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    def heard(self, choice: Choice, text: str) -> list[Part]:
        return [Said(text)] if text else []

    def call_id(self) -> str:
        raise NotImplementedError("raw text has no calls")


def now() -> str:
    """RFC 3339, in UTC."""
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


class Answer:
    """chat: parts go into a message, else beside `response`. logprobs: writes them, None where nobody asked."""

    def __init__(self, heard: Heard, model: str, *, chat: bool, logprobs: LogprobWriter | None) -> None:
        self._heard = heard
        self._model = model
        self._chat = chat
        self._logprobs = logprobs
        self._calls = 0
        self._began = time.perf_counter_ns()
        self._first: int | None = None  # when the first output came

    async def run(self, exchange: Exchange, *, stream: bool) -> None:
        async with self._heard.generation.running() as outputs:
            if stream:
                await exchange.stream(self._lines(outputs))
                return
            async with aclosing(outputs.deltas()) as deltas:
                async for _ in deltas:
                    self._came()
            (choice,) = outputs.choices
            parts = self._heard.heard(choice, choice.text)
            whole = self._object(self._told(parts), choice.logprobs) | self._ending(choice, outputs.usage)
            await exchange.answer(whole)

    async def _lines(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        (choice,) = outputs.choices
        async with aclosing(outputs.deltas()) as deltas:
            async for _, delta in deltas:
                self._came()
                parts = self._heard.heard(choice, delta.text)
                shown = delta.logprobs or () if self._logprobs is not None else ()
                if parts or shown:
                    yield line(self._object(self._told(parts), shown) | {"done": False})
        yield line(self._object({}, ()) | self._ending(choice, outputs.usage))

    def _came(self) -> None:
        if self._first is None:
            self._first = time.perf_counter_ns()

    def _told(self, parts: Sequence[Part]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Said):
                name = "thinking" if part.reasoning else "content"
                told[name] = told.get(name, "") + part.text
                continue
            function = {"index": self._calls, "name": part.name, "arguments": msgspec.json.decode(part.arguments)}
            told.setdefault("tool_calls", []).append({"id": self._heard.call_id(), "function": function})
            self._calls += 1
        return told

    def _object(self, told: dict[str, Any], positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        head: dict[str, Any] = {"model": self._model, "created_at": now()}
        if self._chat:
            head["message"] = {"role": "assistant", "content": ""} | told
        else:
            head["response"] = told.pop("content", "")
            head |= told
        if self._logprobs is not None and positions:
            head["logprobs"] = self._logprobs.chat(positions)["content"]
        return head

    def _ending(self, choice: Choice, usage: Usage) -> dict[str, Any]:
        ended = time.perf_counter_ns()
        first = ended if self._first is None else self._first
        return {
            "done": True,
            "done_reason": choice.finish_reason,
            "total_duration": ended - self._began,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": first - self._began,
            "eval_count": usage.output,
            "eval_duration": ended - first,
        }
