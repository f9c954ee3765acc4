"""ChatML models after Hermes (Qwen 2.5 and 3, SmolLM3, many fine-tunes): one JSON object between tags, one call a tag.

<think>reasoning</think>text<tool_call>
{"name": "f", "arguments": {"x": 1}}
</tool_call>
"""

from __future__ import annotations

from octavo.text.dialects.dialect import Block, Call, Dialect, Schemas, one_call, parsed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK = (("<think>", "</think>"),)


def calls(text: str, schemas: Schemas) -> list[Call]:
    return [one_call(parsed(text))]


DIALECT = Dialect("hermes", (OPEN,), (Block(OPEN, CLOSE, calls),), THINK)
