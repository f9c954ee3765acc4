"""Calls as forms: how they follow one another, their arguments as one JSON object or parameter by parameter.

What a text cannot be bound to is refused for a strict tool, with its keyword, and let go for any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.errors import UnsupportedError
from octavo.form import NOTHING, Form, closed, either, mark, maybe, seq, some, text, value
from octavo.text.dialects.dialect import Opening, Tool

Spelling = Callable[[str, bool], Form]
_ABOUT = frozenset(("title", "description", "examples", "default", "$comment", "$schema", "deprecated", "$id"))
_OBJECT = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_STRING = frozenset(("type", "enum", "const", "minLength", "maxLength", "pattern"))
_DEFINITIONS = ("$defs", "definitions")


def one_of(tools: Sequence[Tool], spell: Callable[[Tool], Form]) -> Form:
    return either(*(spell(tool) for tool in tools))


def repeated(opening: str, body: Form, *, several: bool, between: Form = NOTHING) -> Opening:
    """Blocks one after the other: the mark, its body, and as often as the model likes what parts them and the same."""
    return Opening(
        opening, seq(body, maybe(seq(between, some(seq(mark(opening), body), between)))) if several else body
    )


def json_arguments(tool: Tool) -> Form:
    """An object by the tool's schema; no properties but those that it names, where it names some."""
    schema = dict(tool.schema)
    if schema.get("type", "object") != "object":
        refuse(tool, "", "type")
        schema = {}
    schema["type"] = "object"
    if schema.get("properties") and "patternProperties" not in schema:
        schema.setdefault("additionalProperties", False)
    return value(schema, lenient=not tool.strict)


def named_call(tool: Tool, key: str = "arguments") -> Form:
    """{"name": NAME, "arguments": {...}}"""
    return seq(text(f'{{"name": {json.dumps(tool.name)}, "{key}": '), json_arguments(tool), text("}"))


def parameters(tool: Tool, spell: Spelling, end: tuple[str, str], without: Sequence[str]) -> Form:
    """Every parameter in the order of the schema: its head, its value, its end.

    spell: (name, whether its value is text as it stands) -> the head. end: a text and the mark after it. without: marks
    that no text may hold.
    """
    schema = tool.schema
    _only(tool, "", schema, _OBJECT)
    known = schema.get("properties")
    known = dict(known) if isinstance(known, Mapping) else {}
    required = [name for name in _listed(schema.get("required")) if isinstance(name, str)]
    known |= {name: {} for name in required if name not in known}
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    forms = []
    for name, inner in known.items():
        plain = isinstance(inner, Mapping) and inner.get("type") == "string"
        if plain:
            value_form = plain_text(tool, name, inner, end, without)
        else:
            value_form = seq(_value(tool, inner, shared), text(end[0]), mark(end[1]))
        spelled = seq(spell(name, plain), value_form)
        forms.append(spelled if name in required else maybe(spelled))
    return seq(*forms)


def _value(tool: Tool, schema: Any, shared: Mapping[str, Any]) -> Form:
    if isinstance(schema, Mapping):
        return value({**shared, **schema}, lenient=not tool.strict)
    return value({} if schema is True else {"enum": []}, lenient=not tool.strict)


def plain_text(tool: Tool, name: str, schema: Mapping[str, Any], end: tuple[str, str], without: Sequence[str]) -> Form:
    """A text without quotes. Choices that hold a mark are no choices."""
    _only(tool, name, schema, _STRING)
    marks = (*without, end[1])
    given = _listed([schema["const"]] if "const" in schema else schema.get("enum"))
    choices = [one for one in given if isinstance(one, str) and not any(stop in one for stop in marks)]
    if choices:
        return seq(either(*(text(one) for one in choices)), text(end[0]), mark(end[1]))
    if given:
        refuse(tool, name, "enum")
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    bound = "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"
    pattern = f"(?s:.){bound}"
    if isinstance(schema.get("pattern"), str):
        if bound != "*":
            refuse(tool, name, "pattern")
        pattern = _anywhere(schema["pattern"])
    return closed(pattern, *end, without)


def _anywhere(pattern: str) -> str:
    """A schema's pattern finds; an expression here matches wholly."""
    head = "" if pattern.startswith("^") else "(?s:.*)"
    tail = "" if re.search(r"(?<!\\)(\\\\)*\$$", pattern) else "(?s:.*)"
    return f"{head}({pattern.removeprefix('^')[: -1 if not tail else None]}){tail}"


def _only(tool: Tool, name: str, schema: Mapping[str, Any], known: frozenset[str]) -> None:
    for keyword in schema:
        if keyword not in known and keyword not in _ABOUT and not keyword.startswith("x-"):
            refuse(tool, name, keyword)


def refuse(tool: Tool, name: str, keyword: str) -> None:
    """Of a strict tool. name: of a parameter."""
    if tool.strict:
        where = f"{tool.name}.{name}" if name else tool.name
        raise UnsupportedError(f"{where}: {keyword} cannot be enforced in this model's way of calling", param="tools")


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list) else []
