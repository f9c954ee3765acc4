"""gpt-oss: an output is a row of messages, each with a channel, and a recipient where it is a call.

<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>commentary to=functions.f
<|constrain|>json<|message|>{"x": 1}<|call|>      <|channel|>final<|message|>text<|return|>
"""

from __future__ import annotations

import re

from octavo.text.dialects.dialect import Call, Dialect, Malformed, Part, Said, Schemas, arguments_text, parsed
from octavo.text.dialects.reader import held, merged, stepped

CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN, START = ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
MAX_HEADER = 512  # characters; what is longer is text
_TO = re.compile(r"\bto=functions\.([\w.:-]+)")

DIALECT = Dialect("harmony", (CHANNEL, MESSAGE))
MARKS = (CHANNEL, MESSAGE, CONSTRAIN, *ENDS)


class HarmonyReader:
    """One output; it begins inside the header of its first message."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._text = ""
        self._header: str | None = None  # of the message whose content is being read

    def push(self, text: str) -> list[Part]:
        self._text += text
        return stepped(self._step)

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._header is not None:
            self._end(self._header, self._text, parts)
        elif self._text.strip():
            parts.append(Said(self._text))
        self._text, self._header = "", None
        return merged(parts)

    def _step(self, parts: list[Part]) -> bool:
        """Moves past the next mark that matters; False when none is complete."""
        if self._header is None:
            header, mark, rest = self._text.partition(MESSAGE)
            if mark:
                self._header, self._text = header, rest
                return True
            if len(self._text) > MAX_HEADER:
                parts.append(Said(self._text))
                self._text = ""
            return False
        found = [(at, mark) for mark in ENDS if (at := self._text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._end(self._header, self._text[:at], parts)
            self._header, self._text = None, self._text[at + len(mark) :]
            return True
        if self._called(self._header) is None:
            cut = len(self._text) - held(self._text, ENDS)
            self._say(self._header, self._text[:cut], parts)
            self._text = self._text[cut:]
        return False

    def _end(self, header: str, content: str, parts: list[Part]) -> None:
        name = self._called(header)
        if name is None:
            self._say(header, content, parts)
            return
        try:
            parts.append(Call(name, arguments_text(parsed(content or "{}"))))
        except Malformed:
            parts.append(Said(content))

    def _called(self, header: str) -> str | None:
        to = _TO.search(header)
        return to[1] if to is not None and self._schemas else None

    def _say(self, header: str, content: str, parts: list[Part]) -> None:
        if content:
            parts.append(Said(content, header.partition(CHANNEL)[2].lstrip().startswith("analysis")))
