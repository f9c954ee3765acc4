"""Chat messages as templates expect them: plain text content, no nulls, no empty lists of calls.

Templates concatenate what they are given, so a null would be written as the word None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import RequestError, UnsupportedError

_ROLES = {"developer": "system"}


def normalize(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies with string content, without null fields and empty tool_calls; `developer` becomes `system`.

    Raises RequestError, UnsupportedError that name the message.
    """
    if not messages:
        raise RequestError("messages is empty", param="messages")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where}: a message has a role and content", param=where)
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = _ROLES.get(plain["role"], plain["role"])
    plain["content"] = _content(message.get("content"), where)
    calls = plain.pop("tool_calls", None)
    if calls is not None and not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls is a list", param=f"{where}.tool_calls")
    if calls:
        plain["tool_calls"] = [_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls)]
    return plain


def _content(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise RequestError(f"{where}.content is a string or a list of parts", param=f"{where}.content")
    texts = []
    for place, part in enumerate(content):
        name = f"{where}.content[{place}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "refusal"):
            raise UnsupportedError(f"{name}: parts of type {kind!r} are not supported, only text", param=name)
        if not isinstance(part.get(kind), str):
            raise RequestError(f"{name}.{kind} is a string", param=name)
        texts.append(part[kind])
    return "\n".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}: a tool call has a function", param=where)
    plain = {key: value for key, value in call.items() if value is not None}
    named = {key: value for key, value in function.items() if value is not None}
    plain["function"] = named | {"arguments": _arguments(function.get("arguments"))}
    return plain


def _arguments(arguments: Any) -> Any:
    """Templates are written for a mapping; clients send its JSON text. Text that is no JSON object stays text."""
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments
