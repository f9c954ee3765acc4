"""AsyncLLM: one stream a request, for servers and for programs that run an event loop.

The engine's thread puts deltas into a mailbox; the event loop is woken once for many. Text is assembled in the event
loop as deltas come, whether or not the reader keeps up: a slow reader gets fewer, larger deltas, the engine never waits
for it, and what is held for it is bounded by its own max_tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import IO, Any

from octavo.config import EngineConfig
from octavo.engine.course import Course
from octavo.engine.executor import LiveEngine, ProcessEngine, ProgressHook, ThreadEngine, no_progress
from octavo.engine.inputs import InputReader, Prompt
from octavo.engine.outputs import EmbeddingOutput, StreamDelta, Transcript, embedding
from octavo.engine.port import EngineStats, ModelInfo
from octavo.engine.vocabulary import check_template, load_tokenizer
from octavo.errors import OctavoError
from octavo.grammar.structures import Structures
from octavo.request import Request, SamplingParams, Structure, TokenDelta
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer

HANDFUL = 4096  # deltas that are handed out in one go; some milliseconds


class AsyncLLM:
    """One model behind streams. process: the engine is a child process; its death ends every stream with an error.

    turns: of such processes that share the cores, step by step. The constructor blocks while the model loads; `start`
    does not block the event loop.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        process: bool = False,
        progress: ProgressHook = no_progress,
        turns: IO[bytes] | None = None,
    ) -> None:
        self.config = config
        self.tokenizer: Tokenizer = load_tokenizer(config.model)
        self._template = ChatTemplate.started(self.tokenizer)
        self._structures = Structures(lambda: self.tokenizer)
        self._engine: LiveEngine = (
            ProcessEngine(config, progress=progress, turns=turns)
            if process
            else ThreadEngine(config, progress=progress, structures=self._structures)
        )
        check_template(self._template, self._engine)
        self._inputs = InputReader(self._engine.info, self.tokenizer, self._structures, apart=process)
        self._ids = itertools.count()
        self._post: Post | None = None  # into the event loop of the latest stream
        self._open: dict[str, list[str]] = {}  # request id of a caller -> ids of its sequences

    @classmethod
    async def start(
        cls, config: EngineConfig, *, process: bool = False, progress: ProgressHook = no_progress
    ) -> AsyncLLM:
        return await asyncio.to_thread(cls, config, process=process, progress=progress)

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def error(self) -> OctavoError | None:
        """Why the engine has stopped; None while it serves."""
        return self._engine.error

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises RequestError when the model has none."""
        if self._template is None:
            self._template = ChatTemplate.of(self.tokenizer)
        return self._template

    def check_structure(self, structure: Structure) -> None:
        """Compiles it, away from any stream. Raises RequestError, UnsupportedError."""
        self._structures.check(structure)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> list[int]:
        """The prompt ids of one conversation; options as ChatTemplate.encode takes them."""
        return self.chat_template.encode(self.tokenizer, messages, **options)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        salt: str = "",
        priority: int = 0,
        courses: list[Course] | None = None,
    ) -> AsyncGenerator[StreamDelta, None]:
        """Deltas of all n choices as they come; each choice ends with one that has a finish_reason. Closing the
        iterator aborts. courses: gets one a choice, which is kept current. Raises RequestError before the first delta,
        EngineError when the engine is down."""
        name = request_id or f"request-{next(self._ids)}"
        unique = f"{name}/{next(self._ids)}"
        prepare = partial(self._inputs.prepare, prompt, params, unique, tenant=tenant, salt=salt, priority=priority)
        # and may wait for another text's turn, or for a structure to be compiled
        encodes = isinstance(prompt, (str, Mapping)) or params.bad_words or params.structure
        prepared = await asyncio.to_thread(prepare) if encodes else prepare()
        running = {
            request.id: Transcript(request, child, self.tokenizer, self._engine.finish)
            for child, request in enumerate(prepared.requests)
        }
        if courses is not None:
            courses += [transcript.course for transcript in running.values()]
        mailbox = Mailbox(running, self._post_of(asyncio.get_running_loop()))
        self._open.setdefault(name, []).extend(running)
        try:
            for transcript in running.values():
                self._engine.submit(transcript.request, mailbox.put)
            while running:
                await mailbox.wait()
                for transcript in tuple(running.values()):
                    delta = transcript.pull()
                    if delta is None:
                        continue
                    if delta.finish_reason is not None:
                        del running[transcript.request.id]
                    yield delta
        finally:
            mailbox.close()
            for sequence in running:
                self._engine.abort(sequence)
            self._forget(name, prepared.requests)

    async def embed(self, prompt: Prompt, *, request_id: str | None = None, tenant: str = "") -> EmbeddingOutput:
        """The vector of one prompt, of a model that was loaded to embed. Cancelling aborts. Raises RequestError before
        anything is computed, EngineError when the engine is down."""
        unique = f"{request_id or 'request'}/{next(self._ids)}"
        prepare = partial(self._inputs.prepare_embedding, prompt, unique, tenant=tenant)
        prepared = await asyncio.to_thread(prepare) if isinstance(prompt, (str, Mapping)) else prepare()
        loop = asyncio.get_running_loop()
        last: asyncio.Future[TokenDelta] = loop.create_future()

        def arrive(delta: TokenDelta) -> None:
            if not last.done():
                last.set_result(delta)

        def sink(delta: TokenDelta) -> None:
            if delta.finish_reason is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(arrive, delta)

        (request,) = prepared.requests
        self._engine.submit(request, sink)
        try:
            return embedding(unique, prepared.text, prepared.prompt_ids, await last)
        finally:
            if not last.done() or last.cancelled():
                self._engine.abort(request.id)

    def abort(self, request_id: str) -> None:
        """Ends a stream (or several of one name) with finish_reason "abort"; unknown names are ignored."""
        for sequence in self._open.get(request_id, ()):
            self._engine.abort(sequence)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    @property
    def unfinished(self) -> int:
        """Sequences that the engine was given and has not ended."""
        return self._engine.unfinished

    def close(self) -> None:
        """Ends every stream and frees everything. Idempotent; blocks until the engine has stopped."""
        self._engine.close()
        if self._template is not None:
            self._template.close()

    def _post_of(self, loop: asyncio.AbstractEventLoop) -> Post:
        if self._post is None or self._post.loop is not loop:
            self._post = Post(loop)
        return self._post

    def _forget(self, name: str, requests: Sequence[Request]) -> None:
        gone = {request.id for request in requests}
        left = [sequence for sequence in self._open.get(name, ()) if sequence not in gone]
        if left:
            self._open[name] = left
        else:
            self._open.pop(name, None)


class Mailbox:
    """What one stream waits for: its transcripts, and whether there is news of them."""

    def __init__(self, transcripts: Mapping[str, Transcript], post: Post) -> None:
        self._transcripts = dict(transcripts)
        self._post = post
        self._news = asyncio.Event()
        self._fault: Exception | None = None
        self._closed = False

    def put(self, delta: TokenDelta) -> None:
        """From any thread."""
        if not self._closed:
            self._post.send(self, delta)

    def take(self, delta: TokenDelta) -> None:
        """In the event loop."""
        try:
            self._transcripts[delta.request_id].take(delta)
        except Exception as error:
            self._fault = error
        self._news.set()

    async def wait(self) -> None:
        """Until something was taken since the last call."""
        await self._news.wait()
        self._news.clear()
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        self._closed = True


class Post:
    """Carries deltas from the engine's thread into one event loop, which it wakes once for all that have come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._sacks: deque[tuple[Mailbox, TokenDelta]] = deque()
        self._woken = False

    def send(self, mailbox: Mailbox, delta: TokenDelta) -> None:
        """A loop that has ended needs nothing any more."""
        self._sacks.append((mailbox, delta))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        """A handful at a time: whatever comes meanwhile, the loop goes round."""
        self._woken = False
        for _ in range(min(len(self._sacks), HANDFUL)):
            mailbox, delta = self._sacks.popleft()
            mailbox.take(delta)
        if self._sacks and not self._woken:
            self._woken = True
            self.loop.call_soon(self._hand_out)
