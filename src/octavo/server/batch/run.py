"""A batch: every line that is not answered yet goes to its endpoint, several at a time, and its answer to the file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import ASGIApp

from octavo.server.batch.files import Input, Line, Output
from octavo.server.batch.inside import post
from octavo.server.port import TextEngine

URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/decisions",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
)


@dataclass(slots=True)
class Counts:
    """Lines of this run, and the tokens that they took and gave."""

    answered: int = 0
    refused: int = 0
    skipped: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class Batch:
    """advance: hears of every line that is done, and of its output tokens."""

    def __init__(
        self, app: ASGIApp, llm: TextEngine, given: Input, output: Output, advance: Callable[[int, int], None]
    ) -> None:
        self._app = app
        self._llm = llm
        self._given = given
        self._output = output
        self._advance = advance
        self.counts = Counts(skipped=len(output.answered))

    async def run(self, at_once: int) -> Counts:
        """Raises what stopped the engine; what is answered by then stands in the file."""
        waiting = self._waiting()
        tasks = [asyncio.create_task(self._work(waiting)) for _ in range(at_once)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._llm.error is not None:
            raise self._llm.error
        return self.counts

    def _waiting(self) -> Iterator[Line]:
        done = set(self._output.answered)
        return (line for line in self._given.lines() if line.custom_id not in done)

    async def _work(self, waiting: Iterator[Line]) -> None:
        for line in waiting:
            fault = _fault(line)
            if fault is not None:
                self._output.refuse(line.custom_id, *fault)
                self.counts.refused += 1
                self._advance(1, 0)
                continue
            status, request_id, body = await post(self._app, line.url, msgspec.json.encode(line.body))
            if self._llm.error is not None:  # not the line's fault: it is asked again when the batch goes on
                return
            self._output.answer(line.custom_id, status, request_id, body)
            self._count(status, body)

    def _count(self, status: int, body: bytes) -> None:
        if status != 200:
            self.counts.refused += 1
            self._advance(1, 0)
            return
        usage = msgspec.json.decode(body, type=_Body).usage
        written = usage.completion_tokens + usage.output_tokens
        self.counts.answered += 1
        self.counts.prompt_tokens += usage.prompt_tokens + usage.input_tokens
        self.counts.output_tokens += written
        self._advance(1, written)


def _fault(line: Line) -> tuple[str, str] | None:
    """(code, message) of a line that cannot be asked."""
    if line.method != "POST":
        return "invalid_method", f"method is POST, not {_shown(line.method)}"
    if line.url not in URLS:
        return "invalid_url", f"url is one of {', '.join(URLS)}, not {_shown(line.url)}"
    if not isinstance(line.body, dict):
        return "invalid_body", "body is a JSON object"
    if line.body.get("stream"):
        return "unsupported", "stream: a line of a file is answered whole"
    if line.body.get("background"):
        return "unsupported", "background: a batch waits for its answers"
    return None


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:64]
