"""Llama 3.1 and later: JSON objects as the whole answer, with or without a tag before them; `;` between several.

<|python_tag|>{"name": "f", "parameters": {"x": 1}}
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.form import Form, seq, text
from octavo.text.dialects.dialect import (
    Block,
    Call,
    Dialect,
    Malformed,
    Opening,
    Schemas,
    Tool,
    first_value,
    one_call,
    some,
)
from octavo.text.dialects.spelling import json_arguments, one_of, repeated

TAG = "<|python_tag|>"


def calls(text: str, schemas: Schemas) -> list[Call]:
    found, at = [], 0
    while text[at:].strip(" \n\t;,"):
        value, at = first_value(text, at + len(text[at:]) - len(text[at:].lstrip(" \n\t;,")))
        found.append(one_call(value))
    return some(found)


def bare(text: str, schemas: Schemas) -> list[Call]:
    """An answer may be JSON of its own: only the names of declared tools make it a call."""
    found = calls(text, schemas)
    if any(call.name not in schemas for call in found):
        raise Malformed("not a declared tool")
    return found


def openings(tools: Sequence[Tool], several: bool) -> list[Opening]:
    """Without the tag, as the templates ask for it, and with it."""
    call = seq(text('"name": "'), one_of(tools, _spelled), text("}"))
    plain = repeated("{", call, several=several, between=text("; "))
    return [plain, Opening(TAG, seq(text("{"), plain.rest))]


def _spelled(tool: Tool) -> Form:
    return seq(text(f'{tool.name}", "parameters": '), json_arguments(tool))


DIALECT = Dialect(
    "llama3", (TAG,), (Block(TAG, None, calls), Block("{", None, bare, bare=True)), openings=openings, bare=True
)
