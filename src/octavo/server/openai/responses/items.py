"""Items of a response, read once into a plain form that is kept and listed, and their meaning as chat messages.

A kept item is a dictionary in OpenAI's shape with an id. Of an item's fields, those that say text, names, arguments
and ids are read; what other servers add to theirs (annotations, phases, statuses) says nothing to a model.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.errors import RequestError, UnsupportedError

Item = dict[str, Any]
Find = Callable[[str], Item]  # an item that was answered before, by its id

MAX_ITEMS = 4096
_ROLES = ("user", "system", "developer", "assistant")
_MEDIA = {"input_image": "images", "input_file": "files", "input_audio": "audio"}
_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}  # part -> where its text is


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def read_text(content: Any, where: str) -> str:
    """Text, or a list of text and JSON parts. Raises RequestError, UnsupportedError that name the part."""
    return _flat(content, where)


def read_items(given: str | Sequence[Mapping[str, Any]], find: Find) -> list[Item]:
    """find: raises for an id that is not kept. Raises RequestError, UnsupportedError that name the item."""
    if isinstance(given, str):
        return [_message("user", given, "input", None)]
    if len(given) > MAX_ITEMS:
        raise RequestError(f"input: at most {MAX_ITEMS} items, not {len(given)}", param="input")
    return [_read(item, f"input[{place}]", find) for place, item in enumerate(given)]


def _read(item: Mapping[str, Any], where: str, find: Find) -> Item:
    kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise RequestError(f"{where}.role is one of {', '.join(_ROLES)}, not {role!r}", param=f"{where}.role")
        return _message(role, item.get("content"), where, item.get("id"))
    if kind == "item_reference":
        return find(_text(item, "id", where))
    if kind == "reasoning":
        return _reasoning(item, where)
    if kind in ("function_call", "custom_tool_call"):
        named = {"call_id": _text(item, "call_id", where), "name": _text(item, "name", where)}
        said = "arguments" if kind == "function_call" else "input"
        return _item("fc", kind, item) | named | {said: _text(item, said, where), "status": "completed"}
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = _flat(item.get("output"), f"{where}.output")
        return _item("fco", kind, item) | {"call_id": _text(item, "call_id", where), "output": output} | _DONE
    raise UnsupportedError(f"{where}: items of type {str(kind)[:64]!r} are not supported", param=f"{where}.type")


_DONE = {"status": "completed"}


def _item(prefix: str, kind: str, given: Mapping[str, Any]) -> Item:
    known = given.get("id")
    return {"id": known if isinstance(known, str) and known else new_id(prefix), "type": kind}


def _message(role: str, content: Any, where: str, known: Any) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [{"type": kind, "text": content}] if isinstance(content, str) else _parts(content, kind, f"{where}.content")
    if kind == "output_text":
        parts = [part | {"annotations": []} for part in parts]
    return _item("msg", "message", {"id": known}) | {"role": role, "content": parts} | _DONE


def _parts(content: Any, kind: str, where: str) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise RequestError(f"{where} is a string or a list of parts", code="invalid_type", param=where)
    return [{"type": kind, "text": _part(part, f"{where}[{place}]")} for place, part in enumerate(content)]


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        return _text(part, _TEXTS[kind], where)
    if kind == "input_json" and isinstance(part.get("data"), (dict, list)):
        return json.dumps(part["data"], ensure_ascii=False)
    what = f"{_MEDIA[kind]} are" if kind in _MEDIA else f"parts of type {str(kind)[:64]!r} are"
    raise UnsupportedError(f"{where}: {what} not supported, only text", param=where)


def _flat(output: Any, where: str) -> str:
    """What a tool gave, as one text."""
    if isinstance(output, str):
        return output
    return "\n".join(part["text"] for part in _parts(output, "input_text", where))


def _reasoning(item: Mapping[str, Any], where: str) -> Item:
    """Its text, or what there is of a summary. What another server has sealed is nothing to this model."""
    kept = _item("rs", "reasoning", item)
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        given = item.get(name) or []
        if not isinstance(given, list) or not all(isinstance(part, Mapping) for part in given):
            raise RequestError(f"{where}.{name} is a list of parts", code="invalid_type", param=f"{where}.{name}")
        texts = [_text(part, "text", f"{where}.{name}[{place}]") for place, part in enumerate(given)]
        kept[name] = [{"type": kind, "text": text} for text in texts]
    return kept


def _text(given: Mapping[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if value is None:
        raise RequestError(f"{where}.{name} is required", code="missing_field", param=f"{where}.{name}")
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} is text", code="invalid_type", param=f"{where}.{name}")
    return value


def messages_of(items: Sequence[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The conversation as chat messages: one system message, in front, and at least one other.

    What one turn of the model said, thought and called is one message. Raises RequestError for the output of a call
    that nobody made.
    """
    heads = [instructions] if instructions else []
    messages: list[dict[str, Any]] = []
    called: set[str] = set()
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] in ("system", "developer"):
            heads.append(_said(item))
        elif kind == "message" and item["role"] == "user":
            messages.append({"role": "user", "content": _said(item)})
        elif kind.endswith("_output"):
            if item["call_id"] not in called:
                shown = item["call_id"][:64]
                raise RequestError(f"input: no call {shown!r} stands before its output", param="input")
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        else:
            called.add(item.get("call_id", ""))
            _speak(messages, item)
    head = [{"role": "system", "content": "\n\n".join(heads)}] if heads else []
    return head + (messages or [{"role": "user", "content": ""}])


def _said(item: Item) -> str:
    return "\n".join(part["text"] for part in item["content"])


def _speak(messages: list[dict[str, Any]], item: Item) -> None:
    """Adds to the model's message, or begins one: reasoning comes first in it, calls last."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
    kind = item["type"]
    if kind == "reasoning":
        parts = item["content"] or item["summary"]
        if parts:
            messages.append({"role": "assistant", "reasoning_content": "\n".join(part["text"] for part in parts)})
        return
    if not last or (kind == "message" and last.keys() & {"content", "tool_calls"}):
        last = {"role": "assistant"}
        messages.append(last)
    if kind == "message":
        last["content"] = _said(item)
        return
    arguments = item["arguments"] if kind == "function_call" else json.dumps({"input": item["input"]})
    call = {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": arguments}}
    last.setdefault("tool_calls", []).append(call)
