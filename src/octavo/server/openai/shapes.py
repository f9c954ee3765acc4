"""Request bodies as structs. Defaults are OpenAI's; names beyond OpenAI's are vLLM's, with the same meaning."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from octavo.errors import RequestError, UnsupportedError
from octavo.request import MAX_LOGPROBS, SamplingParams
from octavo.server.openai.structure import read_structure

MAX_PROMPTS = 32
NO_EFFORT = "none"  # reasoning_effort of an answer without reasoning


ToldUsage = Literal["never", "at the end", "always"]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's
    include_obfuscation: bool = False


class Generation(msgspec.Struct, kw_only=True):
    """What chat and plain completions share."""

    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop: str | list[str] = ()  # type: ignore[assignment]
    seed: int | None = None
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stream: bool = False
    stream_options: StreamOptions | None = None
    prompt_cache_key: str = ""
    response_format: Any = None
    # beyond OpenAI
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = msgspec.field(default_factory=list)
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    return_progress: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    speculate: bool | int = True
    structured_outputs: Any = None

    @property
    def told_usage(self) -> ToldUsage:
        """Where a stream tells what was used so far."""
        options = self.stream_options
        if options is None or not options.include_usage:
            return "never"
        return "always" if options.continuous_usage_stats else "at the end"

    @property
    def structure_field(self) -> str:
        """Where the structure of the output was asked for."""
        return "structured_outputs" if self.structured_outputs else "response_format"


class ChatRequest(Generation, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True

    @property
    def budget(self) -> int | None:
        """Most tokens of reasoning, by any of its names. Raises RequestError where two say different things."""
        said = {
            "thinking_budget": self.thinking_budget,
            "thinking_token_budget": self.thinking_token_budget,
            "chat_template_kwargs.thinking_budget": self.chat_template_kwargs.get("thinking_budget"),
        }
        known = {name: value for name, value in said.items() if value is not None}
        for name, value in known.items():
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < 0
                or value != next(iter(known.values()))
            ):
                raise RequestError(f"{name}: one whole number of tokens, not {value!r}", param=name)
        if not known:
            return 0 if self.reasoning_effort == NO_EFFORT else None
        return int(next(iter(known.values())) or 0)


class CompletionRequest(Generation, kw_only=True):
    prompt: Any
    logprobs: int | None = None
    suffix: str = ""
    echo: bool = False
    best_of: int | None = None


def sampling_params(body: Generation, *, max_tokens: int | None, logprobs: int | None, **over: Any) -> SamplingParams:
    """Raises RequestError that names the field of the body."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    return SamplingParams(
        n=body.n,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
        stop_token_ids=tuple(body.stop_token_ids),
        bad_words=tuple(body.bad_words),
        include_stop_str_in_output=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        logprobs=logprobs,
        prompt_logprobs=over.get("prompt_logprobs", body.prompt_logprobs),
        logit_bias=body.logit_bias,  # type: ignore[arg-type]  # keys become integers, or an error that names the field
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        skip_special_tokens=body.skip_special_tokens,
        speculate=body.speculate,
        structure=read_structure(body.response_format, body.structured_outputs),
        thinking_budget=over.get("thinking_budget"),
    )


def chat_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is None:
        return 0 if body.logprobs else None
    if not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    if not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs must be an integer in [0, {MAX_LOGPROBS}], not {body.top_logprobs}", param="top_logprobs"
        )
    return body.top_logprobs


def chat_max_tokens(body: ChatRequest) -> tuple[str, int | None]:
    """(field, value): the newer name wins."""
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    value = getattr(body, field)
    if value is not None and value < 1:
        raise RequestError(f"{field} must be at least 1, not {value}", param=field)
    return field, value


def check_choices(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of < body.n:
        raise RequestError(f"best_of {body.best_of} is smaller than n {body.n}", param="best_of")
    if body.best_of is not None and body.best_of > body.n:
        raise UnsupportedError("best_of above n is not supported", param="best_of")
    if body.n > 1 and body.stream and body.echo and body.logprobs is not None:
        raise UnsupportedError("a stream with echo and logprobs has one choice", param="n")
    if body.suffix and body.echo:
        raise RequestError("echo: not together with suffix, what is filled in stands between the two", param="echo")
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens 0 needs echo: true", param="max_tokens")


def read_prompts(prompt: Any, *, may_be_empty: bool = False, most: int = MAX_PROMPTS) -> list[str | list[int]]:
    """One or several prompts, each text or token ids. Raises RequestError."""
    if isinstance(prompt, str) or _is_ids(prompt):
        prompts = [prompt]
    elif isinstance(prompt, list):
        prompts = prompt
    else:
        raise RequestError("prompt: text, token ids, or a list of them", param="prompt", code="invalid_type")
    if not prompts or len(prompts) > most:
        raise RequestError(f"prompt: 1 to {most} prompts, not {len(prompts)}", param="prompt")
    for one in prompts:
        if not isinstance(one, str) and not _is_ids(one):
            raise RequestError("prompt: text, token ids, or a list of them", param="prompt", code="invalid_type")
        if not one and not may_be_empty:
            raise RequestError("prompt is empty", param="prompt")
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
