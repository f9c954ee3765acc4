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

from octavo.text.dialects import hermes
from octavo.text.dialects.dialect import Block, Call, Dialect, Malformed, Schemas, arguments_text, properties, typed

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


DIALECT = Dialect("qwen", ("<function=",), (Block(hermes.OPEN, hermes.CLOSE, calls),), hermes.THINK)
