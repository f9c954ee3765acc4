"""Gemma's own notation: bare keys, strings between delimiters. FunctionGemma and Gemma 4 differ in their marks.

<start_function_call>call:f{x:1,name:<escape>Ann<escape>}<end_function_call>
<|channel>thought
reasoning<channel|><|tool_call>call:f{x:1,name:<|"|>Ann<|"|>}<tool_call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from octavo.form import Form, mark, seq, text
from octavo.text.dialects.dialect import (
    Block,
    Call,
    Dialect,
    Malformed,
    Opening,
    Openings,
    Schemas,
    Tool,
    arguments_text,
    parsed,
)
from octavo.text.dialects.notation import NotationWriter
from octavo.text.dialects.spelling import one_of, repeated

_CALL = re.compile(r"\s*call:([\w.:-]+)\s*(?=\{)")
_KEY = re.compile(r"\s*([\w.-]+)\s*:\s*")
_BARE = re.compile(r"[^,\[\]{}]+")
MAX_DEPTH = 64


class Notation:
    """One value after another out of a text."""

    def __init__(self, text: str, delimiter: str) -> None:
        self._text = text
        self._delimiter = delimiter
        self._at = 0

    def whole(self) -> Any:
        value = self._value(0)
        if self._text[self._at :].strip():
            raise Malformed("text after the call")
        return value

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Malformed("nested too deep")
        if self._take("{"):
            return dict(self._items("}", lambda: (self._key(), self._value(depth + 1))))
        if self._take("["):
            return self._items("]", lambda: self._value(depth + 1))
        if self._take(self._delimiter):
            end = self._text.find(self._delimiter, self._at)
            if end < 0:
                raise Malformed("a string does not end")
            begin, self._at = self._at, end + len(self._delimiter)
            return self._text[begin:end]
        bare = _BARE.match(self._text, self._at)
        if bare is None:
            raise Malformed("a value is missing")
        self._at = bare.end()
        return parsed(bare[0])

    def _items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        items: list[Any] = []
        while not self._take(close):
            if items and not self._take(","):
                raise Malformed(f"{close} or a comma is missing")
            items.append(item())
        return items

    def _key(self) -> str:
        key = _KEY.match(self._text, self._at)
        if key is None:
            raise Malformed("a key is missing")
        self._at = key.end()
        return key[1]

    def _take(self, mark: str) -> bool:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True


def _reader(delimiter: str) -> Callable[[str, Schemas], list[Call]]:
    def calls(text: str, schemas: Schemas) -> list[Call]:
        head = _CALL.match(text)
        if head is None:
            raise Malformed("no call:NAME{")
        return [Call(head[1], arguments_text(Notation(text[head.end() :], delimiter).whole()))]

    return calls


def _writer(opening: str, closing: str, delimiter: str) -> Openings:
    def openings(tools: Sequence[Tool], several: bool) -> list[Opening]:
        def spelled(tool: Tool) -> Form:
            return seq(text(f"call:{tool.name}"), NotationWriter(tool, delimiter, closing).write())

        return [repeated(opening, seq(one_of(tools, spelled), mark(closing)), several=several)]

    return openings


_OLD, _NEW = ("<start_function_call>", "<end_function_call>", "<escape>"), ("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Dialect(
    "functiongemma", _OLD[:1], (Block(_OLD[0], _OLD[1], _reader(_OLD[2])),), openings=_writer(*_OLD)
)
GEMMA4 = Dialect(
    "gemma4",
    _NEW[:1],
    (Block(_NEW[0], _NEW[1], _reader(_NEW[2])),),
    (("<|channel>", "<channel|>"),),
    "thought\n",
    openings=_writer(*_NEW),
)
