"""Sampler: a step's logits and the requests' parameters in, tokens and log-probabilities out, in one native call.

It owns what a request carries from step to step (compiled options, token counts), by request id, until `forget`.
The noise of a token is a function of (seed, absolute index, token id) alone, so the choice does not depend on
batch mates, on drafts or on how often it is made. Logits are never changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from octavo import _native
from octavo.config import VerifyRule
from octavo.errors import UnsupportedError
from octavo.grammar.bounds import Bounds
from octavo.grammar.structures import Structures
from octavo.request import Request, TokenLogprobs
from octavo.sampling.processor import processed
from octavo.sampling.rules import Chances

# Requests that decode together: sample(logits, header) gives a token a request, in order, -1 where its row is not
# finite; the header is that of the step and says where they stand. Raises ValueError for a step of other rows.
Cohort = Any  # _native.Cohort


class SampleRow(msgspec.Struct, frozen=True, gc=False):
    """One token to be chosen.

    logits_row: its row in the logits. index: absolute index of the sampled token. extra_ids: draft tokens between the
    request's known tokens and this row; they count as output. mask: numpy uint32, bit `id & 31` of word `id >> 5` set
    where the token is allowed, or None.
    """

    request: Request
    logits_row: int
    index: int
    extra_ids: tuple[int, ...] = ()
    mask: Any = None


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """finite False: the row held NaN or infinity, nothing was left to choose from, or a processor failed, as `error`
    says; token_id is then -1."""

    token_id: int
    logprobs: TokenLogprobs | None
    finite: bool
    error: str = ""


@dataclass(slots=True)
class _Compiled:
    """A request's native state, with what Python needs at every step beside it."""

    state: Any
    top: int  # log-probabilities wanted besides the chosen token's; -1: none
    processed: bool
    min_tokens: int
    enders: tuple[int, ...]  # ids that min_tokens bans
    bad_words: tuple[tuple[int, ...], ...]
    bounds: Bounds | None  # of an output that must have a form, or of its reasoning
    plain: bool  # none of the above: the native state is all that a step needs
    counts: bool  # and it is to know the output so far
    mask_seconds: float = 0.0


@dataclass(slots=True)
class MaskTime:
    """What the masks of outputs that have a form took so far."""

    count: int = 0
    seconds: float = 0.0


class Sampler:
    """Chooses tokens for a vocabulary of `vocab_size`, the width of the logits, on up to `threads` of the pool.

    structures: of the same vocabulary, for requests whose output must have a form. rule: by which drafts are accepted
    of requests that are not greedy (rules.py): what they were drawn from is kept here between two steps.
    """

    def __init__(
        self, vocab_size: int, threads: int = 1, structures: Structures | None = None, rule: VerifyRule = "equal"
    ) -> None:
        self.vocab_size = vocab_size
        self.rule = rule
        self._drawn: dict[str, tuple[tuple[int, ...], tuple[Chances | None, ...]]] = {}
        self._threads = threads
        self._structures = structures
        self._compiled: dict[str, _Compiled] = {}
        self.masks = MaskTime()

    def sample(self, logits: Any, rows: Sequence[SampleRow]) -> list[Sampled]:
        """logits: numpy float32 [R, V], contiguous, or a session's handle. One Sampled per row, in order."""
        if not rows:
            return []
        if any(row.request.params.logits_processor is not None for row in rows):
            return self._processed(logits, rows)
        found = self._sample(logits, [self.encode(row) for row in rows])
        for place, one in enumerate(found):
            if not one.finite and (failure := self.failure(rows[place].request)):
                found[place] = Sampled(-1, None, False, failure)
        return found

    def _processed(self, logits: Any, rows: Sequence[SampleRow]) -> list[Sampled]:
        """Rows with a processor are copied before it changes them; log-probabilities that are to be raw are those of
        the row as it was. logits: an array."""
        changed = np.array(logits[[row.logits_row for row in rows]])
        errors = [processed(row.request, row.extra_ids, values) for row, values in zip(rows, changed, strict=True)]
        encoded = [self.encode(msgspec.structs.replace(row, logits_row=place)) for place, row in enumerate(rows)]
        found = self._sample(changed, encoded)
        for place, (row, error) in enumerate(zip(rows, errors, strict=True)):
            params, one = row.request.params, found[place]
            if error:
                found[place] = Sampled(-1, None, False, error)
            elif params.logits_processor and one.finite and one.logprobs and params.logprobs_mode == "raw":
                (raw,) = self.prompt_logprobs(logits, [(row.logits_row, one.token_id, params.logprobs or 0)])
                found[place] = msgspec.structs.replace(one, logprobs=raw)
        return found

    def _sample(self, logits: Any, encoded: Sequence[tuple[Any, ...]]) -> list[Sampled]:
        choices = _native.sample(logits, list(encoded), -1, self._threads)
        return [
            Sampled(token, None if entries is None else TokenLogprobs(entries), finite)
            for token, finite, entries in choices
        ]

    def prompt_logprobs(self, logits: Any, rows: Sequence[tuple[int, int, int]]) -> list[TokenLogprobs]:
        """rows: (logits row, target id, top). Of the raw logits, the target first. A row not finite has no entries."""
        if not rows:
            return []
        return [TokenLogprobs(entries) for entries in _native.prompt_logprobs(logits, list(rows), -1, self._threads)]

    def cohort(self, requests: Sequence[Request]) -> Cohort | None:
        """These requests as the rows of steps to come, while each has one token a step: one call then samples them all
        and touches no object of theirs. None when one asks for more than its next token."""
        states = []
        for request in requests:
            known = self._known(request)
            if not known.plain or request.params.prompt_logprobs is not None:
                return None
            if known.counts:
                _count(known.state, request.output_ids)
            states.append(known.state)
        return _native.Cohort(states, [len(request.prompt_ids) for request in requests], self._threads)

    # ---- other rules than equality
    @property
    def reads(self) -> bool:
        """Whether the rule looks at logits as an array."""
        return self.rule == "typical"

    def judges(self, request: Request) -> bool:
        """Whether its drafts are accepted by such a rule: the greedy choice of every rule is that of equality."""
        return self.rule != "equal" and not request.params.greedy

    def drawn(self, request_id: str, drafts: tuple[int, ...], chances: tuple[Chances | None, ...]) -> None:
        """What these drafts of the next step are drawn from; nothing for drafts that nobody draws."""
        if self.rule != "equal" and chances:
            self._drawn[request_id] = drafts, chances

    def drawn_from(self, request_id: str, drafts: Sequence[int]) -> tuple[Chances | None, ...]:
        """One a draft: those that the step holds are the first of what was proposed."""
        proposed, chances = self._drawn.pop(request_id, ((), ()))
        if not chances or proposed[: len(drafts)] != tuple(drafts):
            return (None,) * len(drafts)
        return chances[: len(drafts)]

    def listed(
        self, logits: Any, encoded: tuple[Any, ...], top: int, index: int | None = None
    ) -> tuple[int, bool, tuple[tuple[int, float, int], ...]]:
        """(choice, finite, (id, log-probability, rank) of the choice and of the `top` likeliest), after all that the
        request changes. index: of other noise than that of the row."""
        state, row, own, extra, banned, mask, *_ = (*encoded, (), (), None)
        wanted = (state, row, own if index is None else index, extra, banned, mask, top, True)
        ((token, finite, entries),) = _native.sample(logits, [wanted], -1, self._threads)
        return token, finite, entries or ()

    def failure(self, request: Request) -> str:
        """Why nothing was left to choose from, where that is known."""
        bounds = self._known(request).bounds
        return "" if bounds is None else bounds.failure

    def forget(self, request_id: str) -> float:
        """Frees the request's state; unknown ids are ignored. Seconds that its masks took."""
        known = self._compiled.pop(request_id, None)
        self._drawn.pop(request_id, None)
        if self._structures is not None:
            self._structures.forget(request_id)
        return 0.0 if known is None else known.mask_seconds

    def encode(self, row: SampleRow) -> tuple[Any, ...]:
        """The row as native code reads it."""
        request = row.request
        known = self._known(request)
        if known.counts:
            _count(known.state, request.output_ids)
        if known.plain and not row.extra_ids and row.mask is None:
            return (known.state, row.logits_row, row.index)
        banned: tuple[int, ...] = ()
        if known.min_tokens > len(request.output_ids) + len(row.extra_ids):
            banned = known.enders
        if known.bad_words:
            banned = (*banned, *_completions(known.bad_words, request.output_ids, row.extra_ids))
        mask = row.mask if known.bounds is None else self._mask(known, known.bounds, request, row.extra_ids)
        return (known.state, row.logits_row, row.index, row.extra_ids, banned, mask, known.top, known.processed)

    def _mask(self, known: _Compiled, bounds: Bounds, request: Request, drafts: Sequence[int]) -> Any:
        begun = time.perf_counter()
        mask = bounds.mask(request.output_ids, drafts, self.vocab_size)
        spent = time.perf_counter() - begun
        known.mask_seconds += spent
        self.masks.count += 1
        self.masks.seconds += spent
        return mask

    def _known(self, request: Request) -> _Compiled:
        known = self._compiled.get(request.id)
        if known is None:
            known = self._compiled[request.id] = self._compile(request)
        return known

    def _compile(self, request: Request) -> _Compiled:
        params = request.params
        params.check_vocabulary(self.vocab_size)
        state = _native.SamplingState(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            repetition=params.repetition_penalty,
            seed=request.seed % (1 << 64),
            bias=list(params.logit_bias.items()),
            allowed=None if params.allowed_token_ids is None else list(params.allowed_token_ids),
            prompt=list(request.prompt_ids) if params.repetition_penalty != 1.0 else [],
        )
        bounds = None
        if params.structure is not None or request.thinking is not None:
            if self._structures is None:
                raise UnsupportedError("structured output needs a vocabulary", param="structure")
            bounds = self._structures.bounds(request)
        bad_words = tuple(word for word in request.bad_word_ids if word and self._inside(word) == word)
        return _Compiled(
            state,
            top=-1 if params.logprobs is None else params.logprobs,
            processed=params.logprobs_mode == "processed",
            min_tokens=params.min_tokens,
            enders=self._inside({*request.eos_ids, *params.stop_token_ids}),
            bad_words=bad_words,
            bounds=bounds,
            plain=params.logits_processor is None
            and not (bad_words or params.min_tokens or bounds or params.logprobs is not None),
            counts=state.counts,
        )

    def _inside(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(token for token in ids if 0 <= token < self.vocab_size)


def _count(state: Any, output_ids: list[int]) -> None:
    """Brings the native counts to `output_ids`: the new tokens only, unless some were taken back."""
    counted = state.num_output
    if counted > len(output_ids):
        state.truncate(len(output_ids))
        counted = len(output_ids)
    if counted and output_ids[counted - 1] != state.last_output:
        state.truncate(0)
        counted = 0
    if counted < len(output_ids):
        state.append(output_ids[counted:])


def _completions(
    bad_words: tuple[tuple[int, ...], ...], output_ids: list[int], extra_ids: tuple[int, ...]
) -> Iterable[int]:
    """Last ids of the bad words whose other ids end the output; a word that begins in the prompt is not looked for."""
    longest = max(len(word) for word in bad_words) - 1
    tail = (*output_ids[max(len(output_ids) - longest, 0) :], *extra_ids)
    for *start, last in bad_words:
        if not start or (len(start) <= len(tail) and list(tail[-len(start) :]) == start):
            yield last
