"""A body of /v1/responses as a struct, and what it means as a chat request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import OctavoError, RequestError, UnsupportedError
from octavo.server.openai.fields import ACCEPTED, Accepted, one_of, read
from octavo.server.openai.shapes import ChatRequest

LOGPROBS = "message.output_text.logprobs"
_INCLUDE = (LOGPROBS, "reasoning.encrypted_content")  # the second asks for what is there anyway, in plain text
MAX_METADATA = 16

# Beside those of all endpoints (openai/fields.py).
IGNORED: Accepted = {
    "client_metadata": lambda value: isinstance(value, Mapping),
    "max_tool_calls": lambda value: isinstance(value, int),  # of tools that run in a server
    "truncation": one_of("disabled"),
}
UNSUPPORTED: Accepted = {
    "conversation": one_of(),
    "prompt": one_of(),
    "context_management": one_of([]),
    "image": one_of(),
    "access_programs": one_of(),
    "background_options": one_of(),
}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool = False


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """summary, generate_summary: without effect, the whole reasoning is given."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponseRequest(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int | None = None
    include: list[str] = msgspec.field(default_factory=list)
    text: TextOptions = msgspec.field(default_factory=TextOptions)
    reasoning: ReasoningOptions = msgspec.field(default_factory=ReasoningOptions)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    prompt_cache_key: str = ""
    # beyond OpenAI, as chat completions have them
    stop: str | list[str] = ()  # type: ignore[assignment]
    seed: int | None = None
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    chat_template_kwargs: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


_SAME = (
    *("model", "temperature", "top_p", "parallel_tool_calls", "prompt_cache_key", "stop", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "top_k", "min_p", "repetition_penalty", "chat_template_kwargs"),
)


@dataclass(frozen=True, slots=True)
class Functions:
    """tools: those of type function, as chat requests have them. places: where each stood. skipped: the other types."""

    tools: list[dict[str, Any]]
    places: list[int]
    skipped: list[str]


def read_response(body: Mapping[str, Any]) -> ResponseRequest:
    """Raises RequestError, UnsupportedError that name the field."""
    asked = read(body, ResponseRequest, {**ACCEPTED, **IGNORED, **UNSUPPORTED})
    for name in asked.include:
        if name not in _INCLUDE:
            raise UnsupportedError(
                f"include: {name[:64]!r} is not supported, only {', '.join(_INCLUDE)}", param="include"
            )
    if asked.top_logprobs and LOGPROBS not in asked.include:
        raise RequestError(f"top_logprobs needs {LOGPROBS} in include", param="top_logprobs")
    if asked.background and not asked.store:
        raise RequestError("background needs store: true, where its answer waits", param="background")
    if asked.stream_options is not None and not asked.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if asked.text.verbosity not in (None, "medium"):
        raise UnsupportedError(
            f"text.verbosity is not supported (got {asked.text.verbosity!r})", param="text.verbosity"
        )
    if asked.reasoning.context not in (None, "auto"):
        raise UnsupportedError("reasoning.context: the chat template decides, only auto", param="reasoning.context")
    if asked.reasoning.mode not in (None, "standard"):
        raise UnsupportedError("reasoning.mode: only standard", param="reasoning.mode")
    if len(asked.metadata) > MAX_METADATA or any(len(k) > 64 or len(v) > 512 for k, v in asked.metadata.items()):
        raise RequestError(
            f"metadata: at most {MAX_METADATA} names of 64 characters and texts of 512", param="metadata"
        )
    return asked


def chat_request(asked: ResponseRequest, messages: list[dict[str, Any]], functions: Functions) -> ChatRequest:
    wanted = LOGPROBS in asked.include
    return ChatRequest(
        messages=messages,
        max_completion_tokens=asked.max_output_tokens,
        logprobs=wanted,
        top_logprobs=(asked.top_logprobs or 0) if wanted else None,
        reasoning_effort=asked.reasoning.effort,
        tools=functions.tools,
        tool_choice=_choice(asked.tool_choice),
        response_format=_format(asked.text.format),
        **{name: getattr(asked, name) for name in _SAME},
    )


def functions_of(tools: Sequence[Mapping[str, Any]]) -> Functions:
    """Tools of other types run in OpenAI's servers, or are for other models: clients send them unasked."""
    found = Functions([], [], [])
    for place, tool in enumerate(tools):
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise RequestError(f"tools[{place}].type is required", code="missing_field", param=f"tools[{place}].type")
        if kind == "function":
            function = {name: value for name, value in tool.items() if name != "type"}
            found.tools.append({"type": "function", "function": function})
            found.places.append(place)
        else:
            found.skipped.append(kind[:64])
    return found


def _choice(given: Any) -> Any:
    """tool_choice as chat requests have it."""
    if not isinstance(given, Mapping):
        return given
    kind = given.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": str(given.get("name"))}}
    if kind != "allowed_tools" or not isinstance(given.get("tools"), list):
        raise UnsupportedError("tool_choice: auto, none, required, a function or allowed_tools", param="tool_choice")
    tools = [
        {"type": "function", "function": {"name": str(tool.get("name"))}}
        for tool in given["tools"]
        if isinstance(tool, Mapping) and tool.get("type") == "function"
    ]
    return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode", "auto"), "tools": tools}}


def _format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """text.format as response_format."""
    if given is None:
        return None
    if given.get("type") != "json_schema":
        return dict(given)
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


_NAMES = (
    (re.compile(r"^messages.*"), "input"),
    (re.compile(r"^max_(completion_)?tokens$"), "max_output_tokens"),
    (re.compile(r"^response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"^reasoning_effort"), "reasoning.effort"),
)


@contextmanager
def own_names(functions: Functions) -> Iterator[None]:
    """Errors inside name the fields of this endpoint instead of those of a chat request."""
    try:
        yield
    except OctavoError as error:
        if error.param is not None:
            known = error.param
            error.param = _own(known, functions)
            error.message = error.message.replace(known, error.param)
        raise


def _own(param: str, functions: Functions) -> str:
    tool = re.match(r"tools\[(\d+)\](\.function\b)?", param)
    if tool is not None:
        return f"tools[{functions.places[int(tool[1])]}]{param[tool.end() :]}"
    for pattern, name in _NAMES:
        param = pattern.sub(name, param)
    return param
