"""Arguments in a notation of bare keys and delimited strings (Gemma's), as a form by the schema of a tool.

{city:<escape>Oslo<escape>,days:[1,2]}: properties that must be there come first, each once, in the schema's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from octavo.errors import UnsupportedError
from octavo.form import NOTHING, Form, either, mark, maybe, seq, some, text, value
from octavo.text.dialects.dialect import Tool
from octavo.text.dialects.spelling import plain_text, refuse

_KEY = re.compile(r"[\w.-]+")
_BARE = ("number", "integer", "boolean", "null")
MAX_DEPTH = 16


class NotationWriter:
    """delimiter: on both sides of a string. closing: ends the call, so that no string may hold it."""

    def __init__(self, tool: Tool, delimiter: str, closing: str) -> None:
        self._tool = tool
        self._delimiter = delimiter
        self._closing = closing

    def write(self) -> Form:
        """Raises UnsupportedError for what cannot be enforced, of a strict tool."""
        return self._object(self._tool.schema, 0)

    def _value(self, schema: Any, depth: int) -> Form:
        if depth > MAX_DEPTH:
            self._no("properties nested so deep")
        schema = schema if isinstance(schema, Mapping) else {}
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            string = plain_text(self._tool, "", schema, ("", self._delimiter), (self._closing,))
            return seq(mark(self._delimiter), string)
        if kind in _BARE:
            return value(schema, lenient=not self._tool.strict)
        refuse(self._tool, "", "a value without one type")
        return either(self._value({"type": "string"}, depth), *(value({"type": bare}) for bare in _BARE[1:]))

    def _object(self, schema: Mapping[str, Any], depth: int) -> Form:
        known = schema.get("properties")
        known = dict(known) if isinstance(known, Mapping) else {}
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        known |= {name: {} for name in required if name not in known}
        for keyword in set(schema) & {"patternProperties", "anyOf", "oneOf", "allOf", "not", "if", "minProperties"}:
            refuse(self._tool, "", keyword)
        for name in known:
            if not _KEY.fullmatch(name):
                refuse(self._tool, "", f"the property {name[:40]!r}")
        first = [self._item(name, known[name], depth) for name in known if name in required]
        later = [
            self._item(name, known[name], depth) for name in known if name not in required and _KEY.fullmatch(name)
        ]
        return seq(text("{"), _items(first, later), text("}"))

    def _item(self, name: str, schema: Any, depth: int) -> Form:
        return seq(text(f"{name}:"), self._value(schema, depth + 1))

    def _array(self, schema: Mapping[str, Any], depth: int) -> Form:
        for keyword in set(schema) & {"maxItems", "uniqueItems", "prefixItems", "contains"}:
            refuse(self._tool, "", keyword)
        least = schema.get("minItems", 0)
        if least not in (0, 1):
            refuse(self._tool, "", "minItems")
        items = some(self._value(schema.get("items", {}), depth + 1), text(","))
        return seq(text("["), items if least else maybe(items), text("]"))

    def _no(self, what: str) -> NoReturn:
        raise UnsupportedError(f"{self._tool.name}: {what} cannot be written as this model calls", param="tools")


def _items(first: Sequence[Form], later: Sequence[Form]) -> Form:
    """All of the first, any of the later, with commas between."""
    rest = [maybe(seq(text(","), item)) for item in later]
    if first:
        return seq(first[0], *(seq(text(","), item) for item in first[1:]), *rest)
    return either(NOTHING, *(seq(item, *rest[place + 1 :]) for place, item in enumerate(later)))
