"""GLM 4.5 and later: the name, then pairs of key and value tags; values are text, not JSON.

<tool_call>f
<arg_key>x</arg_key>
<arg_value>1</arg_value>
</tool_call>
"""

from __future__ import annotations

import re

from octavo.text.dialects import hermes
from octavo.text.dialects.dialect import Block, Call, Dialect, Malformed, Schemas, arguments_text, properties, typed

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


DIALECT = Dialect("glm", ("<arg_key>",), (Block(hermes.OPEN, hermes.CLOSE, calls),), hermes.THINK)
