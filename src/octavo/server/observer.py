"""The eye of the server: what it counts of each request, what it keeps, what it writes down at its end.

An endpoint's engine is wrapped for one request (`Observed`), so that every face is seen alike; nothing here is waited
for by the engine, whose own counts come with its deltas and its stats.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.engine.course import Course
from octavo.engine.outputs import EmbeddingOutput, StreamDelta
from octavo.engine.port import EngineStats, ModelInfo
from octavo.errors import OctavoError, RequestError
from octavo.request import SamplingParams, Structure
from octavo.server import logbook
from octavo.server.exchange import headers_of
from octavo.server.port import TextEngine
from octavo.server.records import KEPT_TOKENS, Prompted, Record, Records
from octavo.server.spans import NoSpans, Spans
from octavo.server.tally import ModelTally, Tally
from octavo.text.tokenizer import Tokenizer

GONE = 499  # the client left before its answer began


class Observer:
    """keep_prompts: records hold the prompts as the models got them. spans: whom requests that end are told to."""

    def __init__(self, *, keep_prompts: bool = False, spans: Spans | None = None) -> None:
        self.tally = Tally()
        self.records = Records()
        self._keep_prompts = keep_prompts
        self._spans = spans or NoSpans()

    def engine(self, llm: TextEngine, scope: Scope) -> Observed:
        """The engine as one request uses it, which is shown from now on."""
        state: dict[str, Any] = scope["state"]
        record: Record = state["record"]
        record.id, record.tenant, record.route = state["request_id"], state["tenant"], route(scope)
        record.model = llm.info.name
        self.records.begin(record)
        return Observed(llm, record, self.records, self.tally.model(llm.info.name), keep_prompts=self._keep_prompts)

    def leave(self, record: Record, scope: Scope) -> None:
        """The request has been answered, or its client has left."""
        state: dict[str, Any] = scope["state"]
        record.id, record.tenant = state.get("request_id", ""), state.get("tenant", "")
        record.route, record.status = route(scope), record.status or GONE
        record.ended = time.monotonic()
        self.tally.answered(record.route, record.method, record.status, record.seconds)
        self.records.end(record)
        logbook.note(record)
        self._spans.note(record, headers_of(scope))


class Watch:
    """ASGI middleware, the outermost: sees every answer, refusals at the door among them. Puts `record` into the
    scope's state."""

    def __init__(self, app: ASGIApp, observer: Observer) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(scope["method"])
        scope.setdefault("state", {})["record"] = record
        self._observer.tally.http_open += 1

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            self._observer.tally.http_open -= 1
            self._observer.leave(record, scope)


class Observed:
    """A TextEngine for one request: passes everything on and keeps its record."""

    def __init__(
        self, llm: TextEngine, record: Record, records: Records, tally: ModelTally, *, keep_prompts: bool
    ) -> None:
        self._llm = llm
        self._record = record
        self._records = records
        self._tally = tally
        self._keep_prompts = keep_prompts

    @property
    def info(self) -> ModelInfo:
        return self._llm.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    @property
    def error(self) -> OctavoError | None:
        return self._llm.error

    @property
    def unfinished(self) -> int:
        return self._llm.unfinished

    def check_structure(self, structure: Structure) -> None:
        begun = time.perf_counter()
        try:
            self._llm.check_structure(structure)
        finally:
            spent = time.perf_counter() - begun
            self._record.compile_seconds += spent
            self._tally.compiling.add(spent)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        return self._llm.encode_chat(messages, **options)

    async def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        salt: str = "",
        priority: int = 0,
        courses: list[Course] | None = None,
    ) -> AsyncGenerator[StreamDelta, None]:
        own: list[Course] = [] if courses is None else courses
        prompted = Prompted(params, own)
        self._records.prompted(self._record, prompted)
        if self._keep_prompts and len(prompt) <= KEPT_TOKENS:
            prompted.ids, prompted.tokenizer = array("I", prompt), self.tokenizer
        latest: dict[int, float] = {}
        stream = self._llm.stream(
            prompt, params, request_id=request_id, tenant=tenant, salt=salt, priority=priority, courses=own
        )
        try:
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    if delta.token_ids:
                        self._count(own[delta.index], latest, len(delta.token_ids))
                    yield delta
        finally:
            for course in own:
                course.end("abort")
                self._tally.ended(course, self._record.arrived)

    async def embed(
        self, prompt: str | Sequence[int], *, request_id: str | None = None, tenant: str = ""
    ) -> EmbeddingOutput:
        if not self._record.prompts:  # one for all its inputs, of which there may be thousands
            self._records.prompted(self._record, Prompted(None, [Course.begin(0, 0, 0)]))
        (course,) = self._record.prompts[0].courses
        try:
            output = await self._llm.embed(prompt, request_id=request_id, tenant=tenant)
        except RequestError:
            if not course.computed:  # it was refused
                self._record.prompts = []
            raise
        ids = output.prompt_token_ids
        course.prompt_tokens += len(ids)
        course.computed += len(ids)
        self._tally.outcomes["embedding"] += 1
        self._tally.prompt_tokens.add(len(ids))
        return output

    def stats(self) -> EngineStats:
        return self._llm.stats()

    def close(self) -> None:
        self._llm.close()

    def _count(self, course: Course, latest: dict[int, float], tokens: int) -> None:
        """Tokens that came together share the time since those before."""
        before = latest.get(course.index)
        latest[course.index] = course.latest
        if before is None:
            self._tally.began(course, self._record.arrived)
        else:
            self._tally.gap.add((course.latest - before) / tokens, tokens)


def route(scope: Scope) -> str:
    """The path with its variable parts named; one word for all that is not served, so that labels stay few."""
    if "endpoint" not in scope:
        return "other"
    path: str = scope["path"]
    for name, value in scope.get("path_params", {}).items():
        path = path.replace(str(value), f"{{{name}}}") if value else path
    return path
