"""Mistral: a list of JSON objects after a mark; since tokenizer version 11 a mark a call, and its name after it.

[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]
[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}
"""

from __future__ import annotations

import re

from octavo.text.dialects.dialect import (
    Block,
    Call,
    Dialect,
    Malformed,
    Schemas,
    arguments_text,
    one_call,
    parsed,
    some,
)

MARK = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")


def calls(text: str, schemas: Schemas) -> list[Call]:
    return some([call for piece in text.split(MARK) for call in _piece(piece)])


def _piece(text: str) -> list[Call]:
    if text.lstrip().startswith("["):
        return [one_call(value) for value in parsed(text)]
    named = _NAMED.match(text)
    if named is None:
        raise Malformed("neither a list of calls nor a name and its arguments")
    return [Call(named[1], arguments_text(parsed(text[named.end() :])))]


DIALECT = Dialect("mistral", (MARK,), (Block(MARK, None, calls),), (("[THINK]", "[/THINK]"),), id_length=9)
