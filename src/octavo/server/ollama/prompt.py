"""Bodies of /api/chat and /api/generate as chat requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import RequestError, UnsupportedError
from octavo.server.ollama.shapes import OPTIONS_ACCEPTED, Asked, ChatBody, GenerateBody, Message, Options
from octavo.server.openai.fields import read
from octavo.server.openai.shapes import ChatRequest


def chat_request(asked: ChatBody | GenerateBody, model: str, room: int) -> ChatRequest:
    """room: tokens of a prompt and its output that fit. Raises RequestError, UnsupportedError that name the field."""
    options = read(asked.options, Options, OPTIONS_ACCEPTED)
    endless = options.num_predict is not None and options.num_predict < 0
    return ChatRequest(
        model=model,
        messages=_messages(asked),
        tools=asked.tools if isinstance(asked, ChatBody) else [],
        max_tokens=room if endless else options.num_predict,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        stream=asked.stream,
        response_format=_format(asked.format),
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        **_thinking(asked),
    )


def _messages(asked: ChatBody | GenerateBody) -> list[dict[str, Any]]:
    if isinstance(asked, ChatBody):
        return _turns(asked.messages)
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    return [*system, {"role": "user", "content": asked.prompt}]


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls without an id get one, and the results that follow are theirs in order."""
    turns: list[dict[str, Any]] = []
    minted, open_calls = 0, list[str]()
    for place, message in enumerate(messages):
        if message.images:
            where = f"messages[{place}].images"
            raise UnsupportedError(f"{where}: images are not supported, only text", param=where)
        turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            turn["tool_calls"] = []
            for call in message.tool_calls:
                name = call.id or f"{minted:09d}"  # nine letters or digits, as the strictest template wants them
                minted += 1
                open_calls.append(name)
                written = msgspec.json.encode(call.function.arguments).decode()
                function = {"name": call.function.name, "arguments": written}
                turn["tool_calls"].append({"id": name, "type": "function", "function": function})
        if message.role == "tool":
            answered = message.tool_call_id or (open_calls[0] if open_calls else f"{minted:09d}")
            open_calls = [name for name in open_calls if name != answered]
            turn |= {"tool_call_id": answered} | ({"name": message.tool_name} if message.tool_name else {})
        turns.append(turn)
    return turns


def _format(given: Any) -> Any:
    if given is None or given == "":
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, Mapping):
        return {"type": "json_schema", "json_schema": {"schema": given}}
    raise RequestError('format is "json" or a JSON schema', param="format", code="invalid_type")


def _thinking(asked: Asked) -> dict[str, Any]:
    """A word is how hard to think; nothing said leaves the template its own way."""
    if asked.think is None:
        return {}
    thinks = bool(asked.think)
    effort = {"reasoning_effort": asked.think} if isinstance(asked.think, str) and thinks else {}
    none = {} if thinks else {"thinking_budget": 0}
    return {"chat_template_kwargs": {"enable_thinking": thinks, "thinking": thinks}} | effort | none
