"""Reads one streamed answer of an OpenAI endpoint: which events carry output, how it ended, what the server counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from octavo.load.record import Record

MAX_BODY = 2**16  # bytes of an error's body that are kept


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Event(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Event)


class StreamReader:
    """The sink of one request. clock: seconds after the start of the run."""

    def __init__(self, record: Record, clock: Callable[[], float]) -> None:
        self._record = record
        self._clock = clock
        self._rest = b""
        self._streams = False
        self._ended = False

    def head(self, status: int, content_type: str) -> None:
        self._record.status = status
        self._streams = status == 200 and content_type == "text/event-stream"

    def body(self, data: bytes) -> None:
        if not self._streams:
            self._rest += data[: MAX_BODY - len(self._rest)]
            return
        now = self._clock()
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            self._event(event, now)

    def finish(self) -> None:
        """The response is complete: what is wrong with it is noted in the record."""
        record = self._record
        if record.status != 200:
            code, message = _refusal(self._rest)
            record.fail(f"HTTP {record.status}{f' {code}' if code else ''}", message)
        elif not self._streams:
            record.fail("not an event stream", self._rest[:200].decode(errors="replace"))
        elif not self._ended:
            record.fail("stream broke off")

    def _event(self, event: bytes, now: float) -> None:
        data = b"\n".join(line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
        if not data:
            return
        if data == b"[DONE]":
            self._ended = True
            return
        try:
            read = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            self._record.fail("unreadable event", f"{error}: {data[:200].decode(errors='replace')}")
            return
        if read.error is not None:
            code, message = _refusal(data)
            self._record.fail(f"error in the stream{f' {code}' if code else ''}", message)
            self._ended = True
        for choice in read.choices:
            delta = choice.delta
            if choice.text or (
                delta is not None and (delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)
            ):
                self._record.piece(now)
            self._ended = self._ended or choice.finish_reason is not None
        if read.usage is not None:
            self._usage(read.usage)

    def _usage(self, usage: Usage) -> None:
        record = self._record
        record.prompt_tokens, record.tokens = usage.prompt_tokens, usage.completion_tokens
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None


class WholeReader:
    """The sink of a short answer that is read as a whole."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""

    def head(self, status: int, content_type: str) -> None:
        self.status = status

    def body(self, data: bytes) -> None:
        self.data += data[: MAX_BODY - len(self.data)]

    def refusal(self) -> str:
        code, message = _refusal(self.data)
        return f"HTTP {self.status}{f' {code}' if code else ''}: {message}"


def _refusal(data: bytes) -> tuple[str, str]:
    """(code, message) of an error's body, whatever stands in it."""
    try:
        error = msgspec.json.decode(data)["error"]
        if isinstance(error, str):
            return "", error
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return "", " ".join(data[:200].decode(errors="replace").split())
