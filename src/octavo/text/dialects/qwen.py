"""Qwen3-Coder, Qwen3-Next and later: a function tag with a tag for each parameter; values are text, not JSON.

<tool_call>
<function=f>
<parameter=x>
1
</parameter>
</function>
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

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def calls(text: str, schemas: Schemas) -> list[Call]:
    function = _FUNCTION.fullmatch(text)
    if function is None:
        raise Malformed("no <function=NAME>")
    name, body = function[1].strip(), function[2]
    known, arguments, at = properties(schemas, name), {}, 0
    while body[at:].strip():
        parameter = _PARAMETER.match(body, at)
        if parameter is None:
            raise Malformed("a parameter does not close")
        key = parameter[1].strip()
        arguments[key] = typed(parameter[2], known.get(key))
        at = parameter.end()
    return [Call(name, arguments_text(arguments))]


def openings(tools: Sequence[Tool], several: bool) -> list[Opening]:
    body = seq(text("\n"), one_of(tools, _spelled), text("</function>\n"), mark(hermes.CLOSE))
    return [repeated(hermes.OPEN, body, several=several, between=text("\n"))]


def _spelled(tool: Tool) -> Form:
    def head(name: str, plain: bool) -> Form:
        return text(f"<parameter={name}>\n")

    end = ("\n", "</parameter>\n")
    return seq(text(f"<function={tool.name}>\n"), parameters(tool, head, end, ("</parameter>", hermes.CLOSE)))


DIALECT = Dialect("qwen", ("<function=",), (Block(hermes.OPEN, hermes.CLOSE, calls),), hermes.THINK, openings=openings)
