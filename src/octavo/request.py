"""What a caller asks, what a step does, what comes back: plain data that may cross processes.

What is made anew in every step is a msgspec.Struct: immutable, and several times cheaper to make than a frozen
dataclass. Who fills a field stands beside it. `index` is a token's place in its request, prompt first, from 0.

    SamplingParams --caller-->  Request  --Scheduler.schedule-->  StepPlan(rows)
                                   ^                                  | runner, session, sampler
                                   '--Scheduler.commit--  StepResult <'      --> TokenDelta to the caller
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from octavo.errors import RequestError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_LOGIT_BIAS = 1024
MAX_STOP_IDS = 1024
MAX_BAD_WORDS, MAX_BAD_LENGTH = 1024, 256  # each is looked at in every step, which batch mates share

MAX_DRAFTS = 1024  # that a request may allow itself; drafters have far fewer
MAX_STRUCTURE, MAX_FORM = 256 << 10, 1 << 20  # characters of a source
_TOKEN_ID = re.compile("-?[0-9]{1,10}")  # as a key of JSON; int() takes more scripts than one

# (the tokens of the prompt and of the output, the logits of what comes next: numpy float32 [V], to be changed in place)
LogitsProcessor = Callable[[Sequence[int], Any], None]
FinishReason = Literal["stop", "length", "abort", "error"]
LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True)
class Structure:
    """What an output must be, from its first token to its last.

    source: a regular expression, a grammar in Lark or GBNF, or the JSON text of a schema, of a list of choices or of a
    form (octavo.form).
    """

    kind: Literal["json_schema", "regex", "grammar", "choice", "form"]
    source: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A limit of reasoning. budget: tokens between its marks. closing: what must come when they are spent; again: and
    when it opens once more. opened: the prompt ends inside it."""

    budget: int
    open: str
    close: str
    closing: tuple[int, ...]
    again: tuple[int, ...]
    opened: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. Names and meanings are vLLM's; everything is checked at construction.

    Order: logits -> logits_processor, bias, penalties, allowed/bad ids, mask -> temperature -> min-p -> top-k -> top-p
    -> sample.
    temperature 0 is greedy. top_k 0 or -1 is off. seed None: one is minted and returned. max_tokens None: what fits.
    `logprobs` n: the chosen token and the n most likely at each position; 0 gives the chosen alone.
    prompt_logprobs_from: index of the first prompt token whose log-probability is wanted; what stands before it may
    come from the prefix cache.
    speculate: whether drafts may be proposed, which change speed alone; a number: at most so many a step.
    shown_special_ids: special tokens that are text all the same. structure: what the output must be. thinking_budget:
    most tokens of reasoning; then the mark that closes it comes, whatever the model would say. logits_processor: for an
    engine in this process; a function of its arguments alone, or the output depends on when it is asked.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    logprobs_mode: LogprobsMode = "raw"
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    detokenize: bool = True
    speculate: bool | int = True
    skip_special_tokens: bool = True
    shown_special_ids: tuple[int, ...] = ()
    structure: Structure | None = None
    thinking_budget: int | None = None
    logits_processor: LogitsProcessor | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words", "shown_special_ids"):
            object.__setattr__(self, name, _tuple(name, getattr(self, name) or ()))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _tuple("allowed_token_ids", self.allowed_token_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        _check_ranges(self)
        _check_lists(self)

    @property
    def most_drafts(self) -> int:
        """Of a step."""
        return MAX_DRAFTS if self.speculate is True else int(self.speculate)

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    def check_vocabulary(self, size: int) -> None:
        """Refuses ids outside [0, size). Raises RequestError that names the field."""
        lists: dict[str, Sequence[int]] = {
            "logit_bias": tuple(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids,
        }
        for name, ids in lists.items():
            for token in ids:
                if not 0 <= token < size:
                    raise RequestError(f"{name}: token id {token} is outside the vocabulary of {size}", param=name)


def _tuple(name: str, given: object) -> tuple[Any, ...]:
    """A lone string is a list of one."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable):
        raise RequestError(f"{name} must be a list, not {given!r}", param=name)
    return tuple(given)


def _bias(bias: Mapping[int, float] | None) -> dict[int, float]:
    try:
        if any(isinstance(token, (bool, float)) for token in bias or ()):
            raise TypeError
        if any(isinstance(token, str) and _TOKEN_ID.fullmatch(token) is None for token in bias or ()):
            raise ValueError
        return {int(token): float(value) for token, value in (bias or {}).items()}
    except (TypeError, ValueError, AttributeError):
        raise RequestError("logit_bias maps token ids to numbers", param="logit_bias") from None


def _number(params: SamplingParams, name: str, low: float, high: float, *, open_low: bool = False) -> None:
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, not {value!r}", param=name)
    if not low <= value <= high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise RequestError(f"{name} must be in {bracket}{low:g}, {high:g}], not {value!r}", param=name)


def _integer(params: SamplingParams, name: str, low: int, high: int, *, optional: bool = False) -> None:
    value = getattr(params, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} must be an integer in [{low}, {high}], not {value!r}", param=name)


def _check_ranges(params: SamplingParams) -> None:
    _number(params, "temperature", 0.0, 100.0)
    _number(params, "top_p", 0.0, 1.0, open_low=True)
    _number(params, "min_p", 0.0, 1.0)
    _number(params, "presence_penalty", -2.0, 2.0)
    _number(params, "frequency_penalty", -2.0, 2.0)
    _number(params, "repetition_penalty", 0.0, 100.0, open_low=True)
    _integer(params, "n", 1, 8)
    _integer(params, "top_k", -1, 2**31 - 1)
    _integer(params, "seed", -(2**63), 2**64 - 1, optional=True)
    _integer(params, "max_tokens", 0, 2**31 - 1, optional=True)
    _integer(params, "min_tokens", 0, 2**31 - 1)
    _integer(params, "thinking_budget", 0, 2**31 - 1, optional=True)
    _integer(params, "logprobs", 0, MAX_LOGPROBS, optional=True)
    _integer(params, "prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
    _integer(params, "prompt_logprobs_from", 0, 2**31 - 1)
    for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens"):
        if not isinstance(getattr(params, name), bool):
            raise RequestError(f"{name} must be true or false, not {getattr(params, name)!r}", param=name)
    if not isinstance(params.speculate, int) or not 0 <= params.speculate <= MAX_DRAFTS:
        said = f"true, false or a number of drafts up to {MAX_DRAFTS}, not {params.speculate!r}"
        raise RequestError(f"speculate is {said}", param="speculate")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens {params.min_tokens} is larger than max_tokens {params.max_tokens}", param="min_tokens"
        )


def _check_lists(params: SamplingParams) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise RequestError(f"stop: at most {MAX_STOP_STRINGS} strings, not {len(params.stop)}", param="stop")
    for text in params.stop:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH:
            raise RequestError(f"stop: each string has 1 to {MAX_STOP_LENGTH} characters", param="stop")
    if len(params.bad_words) > MAX_BAD_WORDS:
        raise RequestError(f"bad_words: at most {MAX_BAD_WORDS} words, not {len(params.bad_words)}", param="bad_words")
    for word in params.bad_words:
        if not isinstance(word, str) or not 0 < len(word) <= MAX_BAD_LENGTH:
            raise RequestError(f"bad_words: each has 1 to {MAX_BAD_LENGTH} characters", param="bad_words")
    if len(params.stop_token_ids) > MAX_STOP_IDS:
        raise RequestError(f"stop_token_ids: at most {MAX_STOP_IDS} ids", param="stop_token_ids")
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise RequestError(f"logit_bias: at most {MAX_LOGIT_BIAS} entries", param="logit_bias")
    for value in params.logit_bias.values():
        if not -100.0 <= value <= 100.0:
            raise RequestError(f"logit_bias values must be in [-100, 100], not {value!r}", param="logit_bias")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise RequestError("allowed_token_ids is empty: no token could be chosen", param="allowed_token_ids")
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token in getattr(params, name) or ():
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(f"{name}: {token!r} is no token id", param=name)
    if params.structure is not None:
        most = MAX_FORM if params.structure.kind == "form" else MAX_STRUCTURE
        if len(params.structure.source) > most:
            raise RequestError(f"structured output: at most {most} characters", param="structure")
    if params.logits_processor is not None and not callable(params.logits_processor):
        raise RequestError(f"logits_processor is a function, not {params.logits_processor!r}", param="logits_processor")
    if params.logprobs_mode not in ("raw", "processed"):
        raise RequestError(f"logprobs_mode is raw or processed, not {params.logprobs_mode!r}", param="logprobs_mode")


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. n > 1 is n Requests, made by the engine, whose seeds derive from (seed, child).

    Caller: id, prompt_ids, params, eos_ids, tenant, salt, adapter, priority (lower runs first), arrival (seconds, any
    origin), whole. Scheduler alone: everything below the line.
    """

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int = 0  # resolved: the caller's, a minted one, or a child's
    eos_ids: tuple[int, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()  # bad_words, tokenized by the engine
    thinking: Thinking | None = None  # params.thinking_budget, with the marks of the model
    tenant: str = ""
    salt: str = ""
    adapter: str = ""  # name and load generation, "" for none
    priority: int = 0
    arrival: float = 0.0
    whole: bool = False  # computed in one step, from its first token on, or not at all
    # ---- filled by the scheduler alone
    max_total: int = 0  # prompt + output tokens at which the request ends with "length"
    output_ids: list[int] = field(default_factory=list)
    planned: int = 0  # tokens whose computation some plan holds
    computed: int = 0  # tokens whose KV is in the cache, committed
    cached: int = 0  # of them, tokens that the prefix cache gave at first admission
    draft_ids: tuple[int, ...] = ()  # proposed after the last committed token
    draft_parents: tuple[int, ...] = ()  # per draft: index into draft_ids of its parent, -1 = the last committed token
    state: Literal["waiting", "running", "finished"] = "waiting"
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or stop string that ended it
    slot: int = -1
    preemptions: int = 0
    queued: float = 0.0  # seconds from arrival to its first step

    @property
    def prompt_rows(self) -> bool:
        """Needs logits of prompt rows."""
        return self.params.prompt_logprobs is not None

    @property
    def first_row(self) -> int:
        """Index of the first prompt row whose logits are needed: that before the first token that is scored."""
        return max(self.params.prompt_logprobs_from - 1, 0)

    @property
    def reusable(self) -> int:
        """How many of its first tokens what others computed may stand for."""
        if self.whole:
            return 0
        return self.first_row if self.prompt_rows else self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and committed output."""
        return len(self.prompt_ids) + len(self.output_ids)

    def token(self, index: int) -> int:
        prompt = len(self.prompt_ids)
        return self.prompt_ids[index] if index < prompt else self.output_ids[index - prompt]

    def tokens(self, start: int, end: int) -> list[int]:
        prompt = len(self.prompt_ids)
        return [*self.prompt_ids[start:end], *self.output_ids[max(start - prompt, 0) : max(end - prompt, 0)]]


class Row(msgspec.Struct, frozen=True, gc=False):
    """One request's share of a step (a run of tokens; the word follows the scheduler's table of rows).

    Token t of the row has index start + t, except drafts of a tree, whose *position* is start + depth.
    token_ids: known tokens, then drafts. num_drafts: how many at the end are drafts. parents: only for trees, per
    draft: offset in the row of its parent token (drafts in a chain have none: parents is empty).
    logits_from: offset in the row of the first token whose logits are wanted; len(token_ids) when none are.
    sample: the last known token is reached, so this row yields output (drafts are verified with it).
    no_write: the first token's KV is in a shared block already; compute its row, do not write.
    """

    request_id: str
    slot: int
    start: int
    token_ids: tuple[int, ...]
    logits_from: int
    sample: bool
    num_drafts: int = 0
    parents: tuple[int, ...] = ()
    no_write: bool = False
    adapter: str = ""

    @property
    def num_logits(self) -> int:
        return len(self.token_ids) - self.logits_from


class TableUpdate(msgspec.Struct, frozen=True, gc=False):
    """Block-table entries of (slot, group) from block number `first` on are now `blocks`. 0 is the null block."""

    slot: int
    group: int
    first: int
    blocks: tuple[int, ...]


class KVCopy(msgspec.Struct, frozen=True, gc=False):
    """Before anything else of the step: within `slot`, token `source`'s cache entries become token `target`'s."""

    slot: int
    source: int
    target: int


class StateStep(msgspec.Struct, frozen=True, gc=False):
    """What a row does to the recurrent state of its slot, in this order.

    restore: the snapshot that it starts from (0: what the slot holds; zeros for a row that starts at index 0); a plan
    writes no snapshot that it restores. replay: how many accepted drafts, last tokens before the row's start, are taken
    from the slot's tail. snapshots: (tokens, snapshot): the state after so many tokens, replayed ones counted, is
    copied there. Drafts of the row go to the tail.
    """

    replay: int = 0
    restore: int = 0
    snapshots: tuple[tuple[int, int], ...] = ()


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """What one step does. Made by Scheduler.schedule, committed in order of `number`. states: one per row, or none at
    all where no program keeps recurrent state."""

    number: int
    rows: tuple[Row, ...]
    copies: tuple[KVCopy, ...] = ()
    tables: tuple[TableUpdate, ...] = ()
    freed_slots: tuple[int, ...] = ()  # slots whose request is gone or preempted: per-slot state is dropped first
    states: tuple[StateStep, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def num_logits(self) -> int:
        return sum(row.num_logits for row in self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Log-probabilities at one position: (token id, logprob, rank from 1), the chosen token first, then the top n."""

    entries: tuple[tuple[int, float, int], ...]


class RowResult(msgspec.Struct, frozen=True, gc=False):
    """Per Row of the plan, same order. Filled by runner.finish.

    token_ids: empty when the row does not sample; else the accepted drafts and one more token.
    accepted: offsets in row.token_ids of the accepted drafts in path order (len(token_ids) - 1 of them).
    logprobs: one per token in token_ids when asked for. prompt_logprobs: one per prompt row of this step when asked.
    finite: False when a needed logits row holds NaN or infinity: the request fails and its blocks leave the cache.
    error: why it fails, where that is known better.
    draft_ids, draft_parents: what the drafter proposes for the next step (see Request).
    embedding: of a model that embeds, of a row that ends its request: float32, little endian.
    """

    token_ids: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finite: bool = True
    draft_ids: tuple[int, ...] = ()
    draft_parents: tuple[int, ...] = ()
    embedding: bytes = b""
    error: str = ""


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """rows: one per Row of the plan, in order. An int stands for RowResult((int,)): a token was sampled, and nothing
    else is to be said. Most are; a step of decodes then makes no object a row."""

    number: int
    rows: tuple[RowResult | int, ...]


class TokenDelta(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What leaves commit for one request. Exactly one delta per request carries a finish_reason, and it is the last.

    One without tokens says that the prompt is computed so far. cached_tokens, computed, queued, preemptions: as in
    Request. mask_seconds: with the last delta, by the loop: what the masks of an output that has a form took.
    drafted, accepted: drafts that this step verified, and how many of them are among its tokens.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    computed: int = 0
    queued: float = 0.0
    preemptions: int = 0
    embedding: bytes = b""
    mask_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
