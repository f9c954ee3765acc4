"""ChatML models after Hermes (Qwen 2.5 and 3, SmolLM3, many fine-tunes): one JSON object between tags, one call a tag.

<think>reasoning</think>text<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.form import mark, seq, text
from octavo.text.dialects.dialect import Block, Call, Dialect, Opening, Schemas, Tool, one_call, parsed
from octavo.text.dialects.spelling import named_call, one_of, repeated

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK = (("<think>", "</think>"),)


def calls(text: str, schemas: Schemas) -> list[Call]:
    return [one_call(parsed(text))]


def openings(tools: Sequence[Tool], several: bool) -> list[Opening]:
    body = seq(text("\n"), one_of(tools, named_call), text("\n"), mark(CLOSE))
    return [repeated(OPEN, body, several=several, between=text("\n"))]


DIALECT = Dialect("hermes", (OPEN,), (Block(OPEN, CLOSE, calls),), THINK, openings=openings)
