"""Token deltas of the engine -> what callers see: text, token ids, log-probabilities, in vLLM's shapes.

A Transcript is one sequence's output. It owns the late stop: a stop string is found here, one or more steps after its
last token was sampled; text, ids and log-probabilities end with it and the engine is told where.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.engine.course import NO_DRAFTS, Course, Drafts
from octavo.errors import EngineError
from octavo.request import FinishReason, Request, TokenDelta, TokenLogprobs
from octavo.text.detokenizer import Detokenizer
from octavo.text.tokenizer import Tokenizer

StopFound = Callable[[str, int, str], None]  # request id, output tokens to keep, the stop string


@dataclass(frozen=True, slots=True)
class Logprob:
    """rank: 1 for the most likely token of the position."""

    logprob: float
    rank: int
    decoded_token: str


PositionLogprobs = dict[int, Logprob]  # token id -> its log-probability; the chosen token is the first


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What is new of choice `index`. Text may lag behind tokens; ids and log-probabilities come with their text.

    logprobs: one per token when asked for. prompt_logprobs: on the first delta of choice 0 when asked for, one per
    prompt token, None for those before the first that was scored. A finish_reason is on the last delta of each choice;
    for "error", stop_reason says why. prompt_tokens, cached_tokens: of the whole prompt, the same on every delta.
    drafts: of the choice so far.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drafts: Drafts = NO_DRAFTS


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice. cumulative_logprob and logprobs: when asked for. stop_reason: the stop string or id that ended it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: list[PositionLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and its choices. num_cached_tokens: prompt tokens that the prefix cache gave. drafts: of all choices:
    `proposed`, `accepted`, and `length`, tokens a step."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = True
    num_cached_tokens: int = 0
    drafts: Drafts = NO_DRAFTS


@dataclass(slots=True)
class _Pending:
    """Taken, not pulled."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Transcript:
    """`take` each delta of one request in order, `pull` what can be shown. One thread at a time."""

    def __init__(self, request: Request, index: int, tokenizer: Tokenizer, stop_found: StopFound) -> None:
        params = request.params
        self.request = request
        self.index = index
        self.course = Course.begin(index, len(request.prompt_ids), request.seed)
        self._pieces = tokenizer.pieces
        self._stop_found = stop_found
        self._detokenizer = (
            Detokenizer(
                tokenizer,
                request.prompt_ids,
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
                shown=params.shown_special_ids,
                min_tokens=params.min_tokens,
            )
            if params.detokenize
            else None
        )
        self._pending = _Pending()
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._taken = 0  # output tokens
        self._pulled = False  # anything yet
        self._closed = False  # the last delta is pulled
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def take(self, delta: TokenDelta) -> None:
        """Deltas that come after a stop string was found belong to nobody."""
        if self.finished:
            return
        self._prompt_logprobs += delta.prompt_logprobs
        keep = len(delta.token_ids)
        if self._detokenizer is not None:
            keep = self._take_text(self._detokenizer, delta)
        self._pending.token_ids += delta.token_ids[:keep]
        self._pending.logprobs += delta.logprobs[:keep]
        self._taken += keep
        self.course.take(delta, keep)
        if not self.finished and delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            if self._detokenizer is not None:
                self._pending.text.append(self._detokenizer.finish())
        if self.finish_reason is not None:
            self.course.end(self.finish_reason, self.stop_reason)

    def pull(self) -> StreamDelta | None:
        """Everything taken since the last pull; None while there is nothing to show."""
        pending, params = self._pending, self.request.params
        text = "".join(pending.text)
        silent = not pending.token_ids if self._detokenizer is None else not text
        if self._closed or (silent and not self.finished):
            return None
        self._pending, self._closed = _Pending(), self.finished
        first, self._pulled = not self._pulled, True
        return StreamDelta(
            index=self.index,
            text=text,
            token_ids=tuple(pending.token_ids),
            logprobs=None if params.logprobs is None else [self._named(entry) for entry in pending.logprobs],
            prompt_logprobs=self._of_prompt() if first and params.prompt_logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            prompt_tokens=len(self.request.prompt_ids),
            cached_tokens=self.course.cached_tokens,
            drafts=self.course.drafts,
        )

    def _take_text(self, detokenizer: Detokenizer, delta: TokenDelta) -> int:
        """How many of the delta's tokens belong to the output. The EOS or stop id that ended it shows no text."""
        ids: Sequence[int] = delta.token_ids
        if delta.finish_reason == "stop" and not self.request.params.include_stop_str_in_output:
            ids = ids[:-1]
        piece = detokenizer.push(ids)
        self._pending.text.append(piece.text)
        if piece.stop is None:
            return len(delta.token_ids)
        stop, total = piece.stop
        self.finish_reason, self.stop_reason = "stop", stop
        if delta.finish_reason is None:
            self._stop_found(self.request.id, total, stop)
        return total - self._taken

    def _of_prompt(self) -> list[PositionLogprobs | None]:
        nothing = [None] * (self.request.first_row + 1)
        return [*nothing, *(self._named(entry) for entry in self._prompt_logprobs)]

    def _named(self, position: TokenLogprobs) -> PositionLogprobs:
        named: PositionLogprobs = {}
        for token_id, logprob, rank in position.entries:
            text = self._pieces.piece(token_id, skip_special=False).decode("utf-8", "replace")
            named.setdefault(token_id, Logprob(logprob, rank, text))
        return named


def completion(delta: StreamDelta) -> CompletionOutput:
    """A whole sequence that was pulled once, at its end."""
    chosen = None if delta.logprobs is None else [next(iter(entry.values())).logprob for entry in delta.logprobs]
    return CompletionOutput(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        cumulative_logprob=None if chosen is None else sum(chosen),
        logprobs=delta.logprobs,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """One vector, of a text or of token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    embedding: list[float]


def embedding(request_id: str, prompt: str | None, ids: tuple[int, ...], delta: TokenDelta) -> EmbeddingOutput:
    """Raises EngineError where the request ended without a vector."""
    if not delta.embedding:
        reason = delta.stop_reason or "a state is not finite"
        raise EngineError(f"request {request_id} ended with {delta.finish_reason}: {reason}")
    values = array("f")
    values.frombytes(delta.embedding)
    return EmbeddingOutput(request_id, prompt, ids, values.tolist())
