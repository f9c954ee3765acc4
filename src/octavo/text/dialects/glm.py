"""GLM 4.5 and later: the name, then pairs of key and value tags; values are text, not JSON.

<tool_call>f
<arg_key>x</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.form import Form, mark, seq, text
from octavo.text.dialects import hermes
from octavo.text.dialects.dialect import (
    Block,
    Call,
    Dialect,
    Malformed,
    Opening,
    Schemas,
    Tool,
    arguments_text,
    properties,
    typed,
)
from octavo.text.dialects.spelling import one_of, parameters, repeated

_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

_PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def calls(text: str, schemas: Schemas) -> list[Call]:
    name, tag, rest = text.partition("<arg_key>")
    name, body = name.strip(), tag + rest
    if not name or any(char.isspace() for char in name):
        raise Malformed("no name")
    known, arguments, at = properties(schemas, name), {}, 0
    while body[at:].strip():
        pair = _PAIR.match(body, at)
        if pair is None:
            raise Malformed("a key without a value")
        key = pair[1].strip()
        arguments[key] = typed(pair[2], known.get(key))
        at = pair.end()
    return [Call(name, arguments_text(arguments))]


def openings(tools: Sequence[Tool], several: bool) -> list[Opening]:
    body = seq(one_of(tools, _spelled), text("\n"), mark(hermes.CLOSE))
    return [repeated(hermes.OPEN, body, several=several, between=text("\n"))]


def _spelled(tool: Tool) -> Form:
    def head(name: str, plain: bool) -> Form:
        return seq(text("\n"), mark(_KEY), text(name), mark(_KEY_END), text("\n"), mark(_VALUE))

    return seq(text(tool.name), parameters(tool, head, ("", _VALUE_END), (hermes.CLOSE,)))


DIALECT = Dialect("glm", ("<arg_key>",), (Block(hermes.OPEN, hermes.CLOSE, calls),), hermes.THINK, openings=openings)
