"""One request bound to the model that answers it: what fits, what can be compiled, and its prompts in the engine."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from octavo.engine.course import NO_DRAFTS, Course, Drafts
from octavo.engine.inputs import check_structured
from octavo.engine.outputs import EmbeddingOutput, PositionLogprobs, StreamDelta
from octavo.errors import ContextLengthError, EngineError, OctavoError, RequestError, UnsupportedError
from octavo.form import TOO_LARGE
from octavo.request import FinishReason, SamplingParams
from octavo.server.admission import Ticket
from octavo.server.port import TextEngine
from octavo.server.streams import EngineStream, merged
from octavo.types import digest

DEFAULT_MAX_TOKENS = 4096


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
    drafts: Drafts = NO_DRAFTS

    def add(self, delta: StreamDelta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.finish_reason, self.stop_reason, self.drafts = delta.finish_reason, delta.stop_reason, delta.drafts


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all its prompts and choices."""

    prompt: int
    output: int
    cached: int
    drafts: Drafts


@dataclass(frozen=True, slots=True)
class Call:
    llm: TextEngine
    tenant: str
    request_id: str
    ticket: Ticket  # its place among those that wait

    def fit(self, params: SamplingParams, prompt_tokens: int, wanted: int | None) -> SamplingParams:
        """With max_tokens resolved. Raises ContextLengthError, CapacityError, RequestError that name the field."""
        info = self.llm.info
        limit = self.room
        if prompt_tokens >= limit:
            info.check(prompt_tokens, wanted)
        max_tokens = fitting_tokens(wanted, prompt_tokens, limit, DEFAULT_MAX_TOKENS, "prompt")
        info.check(prompt_tokens, max_tokens)
        fitted = replace(params, max_tokens=max_tokens)
        fitted.check_vocabulary(info.vocab_size)
        check_structured(fitted)
        return fitted

    def at_most(self, wanted: int | None, prompt_tokens: int) -> int | None:
        """max_tokens as a limit alone: no more than fits, where anything does."""
        room = self.room - prompt_tokens
        return wanted if wanted is None else max(1, min(wanted, room))

    @property
    def room(self) -> int:
        """Tokens of a prompt and its output that fit together."""
        return min(self.llm.info.max_model_len, self.llm.info.kv_tokens)

    async def check_structure(self, params: SamplingParams, field: str) -> None:
        """Before anything is answered. Raises RequestError, UnsupportedError that name the field."""
        if params.structure is not None:
            with naming(structure=field):
                await asyncio.to_thread(self.llm.check_structure, params.structure)

    def generation(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        *,
        cache_key: str = "",
        tokens: int | None = None,
    ) -> Generation:
        """cache_key: prefixes are shared within one tenant and one such key. tokens: to be computed, where prompts
        share some. Raises HttpError (429)."""
        tokens = sum(len(prompt.ids) for prompt in prompts) if tokens is None else tokens
        self.ticket.weigh(sum(each.n for each in params), tokens)
        courses: tuple[list[Course], ...] = tuple([] for _ in prompts)
        return Generation(self, tuple(prompts), tuple(params), cache_salt(self.tenant, cache_key), courses)

    async def embed(self, prompts: Sequence[str | list[int]] | Sequence[str]) -> list[EmbeddingOutput]:
        """One vector a prompt. Raises HttpError (429), and as AsyncLLM.embed does."""
        self.ticket.weigh(len(prompts), 0)
        tasks = [
            asyncio.ensure_future(self.llm.embed(prompt, request_id=self.request_id, tenant=self.tenant))
            for prompt in prompts
        ]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        self.ticket.begun()
        self.ticket.spent(sum(len(output.prompt_token_ids) for output in outputs))
        return outputs


@dataclass(frozen=True, slots=True)
class Prefill:
    """Tokens of all prompts, those found in the cache, those in the cache by now. time_ms: since they were given."""

    total: int
    cache: int
    processed: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Prompts for the engine, each with its parameters, which differ in what fits alone."""

    call: Call
    prompts: tuple[Prompt, ...]
    params: tuple[SamplingParams, ...]
    salt: str
    courses: tuple[list[Course], ...]  # of the choices of each prompt, once it runs

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Outputs]:
        """Streams that are open inside and aborted after. Raises RequestError before anything came."""
        streams = [EngineStream(self._begin(place)) for place in range(len(self.prompts))]
        try:
            for stream in streams:
                await stream.open()
            yield Outputs(self, streams)
        finally:
            for stream in streams:
                await stream.close()

    def _begin(self, place: int) -> AsyncGenerator[StreamDelta, None]:
        prompt, params, call = self.prompts[place], self.params[place], self.call
        if params.max_tokens == 0 and params.prompt_logprobs is None:
            return _nothing(params.n)
        courses = self.courses[place]
        return call.llm.stream(
            prompt.ids, params, request_id=call.request_id, tenant=call.tenant, salt=self.salt, courses=courses
        )

    def prefill(self) -> Prefill:
        """How far the prompts are, as of now."""
        first = [courses[0] for courses in self.courses if courses]
        now = time.monotonic()
        return Prefill(
            total=sum(len(prompt.ids) for prompt in self.prompts),
            cache=sum(course.cached_tokens for course in first),
            processed=sum(min(course.computed, course.prompt_tokens) for course in first),
            time_ms=int(1000 * (now - min((course.begun for course in first), default=now))),
        )


class Outputs:
    """The choices of a running generation, prompt after prompt, and how they grow."""

    def __init__(self, generation: Generation, streams: Sequence[EngineStream]) -> None:
        self._generation = generation
        self._streams = streams
        self._n = generation.params[0].n
        self.choices = [
            Choice(place * self._n + child, prompt)
            for place, prompt in enumerate(generation.prompts)
            for child in range(self._n)
        ]

    async def deltas(self) -> AsyncGenerator[tuple[Choice, StreamDelta], None]:
        """What is new and of which choice, which has it already. Raises EngineError, and RequestError for a structure
        whose size shows only now."""
        ticket = self._generation.call.ticket
        async with aclosing(merged(self._streams)) as deltas:
            async for place, delta in deltas:
                if delta.finish_reason == "error":
                    raise _failure(str(delta.stop_reason or "see the log"))
                if delta.finish_reason == "abort":
                    raise EngineError("the request was aborted by the server", code="aborted")
                ticket.begun()
                ticket.spent(len(delta.token_ids))
                choice = self.choices[place * self._n + delta.index]
                choice.add(delta)
                yield choice, delta

    async def finished(self) -> list[Choice]:
        """All choices, whole. Raises EngineError."""
        async with aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass
        for choice in self.choices:
            choice.prompt_logprobs = self.choices[choice.index - choice.index % self._n].prompt_logprobs
        return self.choices

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt=sum(len(prompt.ids) for prompt in self._generation.prompts),
            output=sum(len(choice.token_ids) for choice in self.choices),
            cached=sum(choice.cached_tokens for choice in self.choices if choice.index % self._n == 0),
            drafts=sum((choice.drafts for choice in self.choices), NO_DRAFTS),
        )


def fitting_tokens(wanted: int | None, prompt_tokens: int, limit: int, default: int, param: str) -> int:
    """max_tokens, by default the smaller of `default` and what fits. Raises ContextLengthError with both numbers."""
    if wanted is not None:
        return wanted
    if prompt_tokens >= limit:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens, the context length is {limit}: shorten it", param=param
        )
    return min(default, limit - prompt_tokens)


def cache_salt(tenant: str, key: str) -> str:
    """Prefixes are shared within one tenant and one prompt_cache_key."""
    return digest(tenant, key).hex() if tenant or key else ""


@contextmanager
def naming(**fields: str) -> Iterator[None]:
    """Errors inside name the endpoint's own field for one of SamplingParams."""
    try:
        yield
    except (RequestError, UnsupportedError) as error:
        field = fields.get(error.param or "")
        if field is not None and field != error.param:
            error.message = re.sub(rf"^{error.param}\b", field, error.message)
            error.param = field
        raise


def _failure(reason: str) -> OctavoError:
    if reason.startswith(TOO_LARGE):
        return RequestError(reason, code="invalid_structure")
    return EngineError(f"the engine failed: {reason}")


async def _nothing(n: int) -> AsyncGenerator[StreamDelta, None]:
    for child in range(n):
        yield StreamDelta(child, "", (), finish_reason="length")
