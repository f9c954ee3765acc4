"""Mistral: a list of JSON objects after a mark; since tokenizer version 11 a mark a call, and its name after it.

[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]
[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.form import mark, maybe, regex, seq, text
from octavo.form import some as some_of
from octavo.text.dialects.dialect import (
    Block,
    Call,
    Dialect,
    Malformed,
    Opening,
    Schemas,
    Tool,
    arguments_text,
    one_call,
    parsed,
    some,
)
from octavo.text.dialects.spelling import json_arguments, named_call, one_of, repeated

MARK, ARGUMENTS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAMED = re.compile(r"\s*([\w.:-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")


def calls(text: str, schemas: Schemas) -> list[Call]:
    return some([call for piece in text.split(MARK) for call in _piece(piece)])


def _piece(text: str) -> list[Call]:
    if text.lstrip().startswith("["):
        return [one_call(value) for value in parsed(text)]
    named = _NAMED.match(text)
    if named is None:
        raise Malformed("neither a list of calls nor a name and its arguments")
    return [Call(named[1], arguments_text(parsed(text[named.end() :])))]


def listed(tools: Sequence[Tool], several: bool) -> list[Opening]:
    call = one_of(tools, named_call)
    return [Opening(MARK, seq(regex(" ?"), text("["), some_of(call, text(", ")) if several else call, text("]")))]


def named(tools: Sequence[Tool], several: bool) -> list[Opening]:
    name_id = maybe(seq(mark(ID), regex("[a-zA-Z0-9]{9}")))
    body = one_of(tools, lambda tool: seq(text(tool.name), name_id, mark(ARGUMENTS), json_arguments(tool)))
    return [repeated(MARK, body, several=several)]


_BLOCKS, _THINK = (Block(MARK, None, calls),), (("[THINK]", "[/THINK]"),)
DIALECT = Dialect("mistral", (MARK,), _BLOCKS, _THINK, id_length=9, openings=listed)
NAMED = Dialect("mistral-named", (MARK, ARGUMENTS), _BLOCKS, _THINK, id_length=9, openings=named)
