"""Text as it is generated -> what was said, what was thought, what is called.

    said ──thoughts open──> thinking ──close──> said ──block opens──> block ──closes──> said

Text is handed on as soon as it cannot be the beginning of a mark. A call comes whole, when its block has closed: a
block that holds no call is text, and text that was sent cannot be taken back. White space beside marks belongs to them.
A mark inside a string of a call closes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.text.dialects.dialect import Block, Dialect, Malformed, Part, Said, Schemas, Unfinished


class Reader(Protocol):
    def push(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...


class MarkReader:
    """One output. schemas: declared tools; without any, blocks are text. thinking: the prompt opened reasoning."""

    def __init__(self, dialect: Dialect, schemas: Schemas, *, thinking: bool = False) -> None:
        self._schemas = schemas
        self._blocks = dialect.blocks if schemas else ()
        self._thoughts = dialect.thoughts
        self._label = dialect.label
        self._close = dialect.thoughts[0][1] if thinking else None  # of the reasoning that is open
        self._block: Block | None = None
        self._passed: list[int] = []  # where closing marks stand in strings of the block, or so it seems
        self._text = ""  # not handed on: may begin a mark, or stands in a block
        self._space = ""  # white space that a mark may follow
        self._fresh = thinking  # nothing was said since the last mark
        self._silent = True  # nothing was said at all
        self._labelled = False  # the label of this reasoning was looked at

    def push(self, text: str) -> list[Part]:
        self._text += text
        return stepped(self._step)

    def finish(self) -> list[Part]:
        """The rest: an unfinished block is read as if it had closed, else it is text."""
        parts: list[Part] = []
        while self._block is not None and self._passed and not self._is_call(self._block, self._text):
            self._cut_block(self._block, self._passed[0], parts)
            parts += self.push("")
        text, self._text = self._text, ""
        if self._block is not None:
            self._end_block(self._block, text, "", parts)
        else:
            self._say(text, parts)
        if self._space and not self._fresh:
            parts.append(Said(self._space, self._close is not None))
        return merged(parts)

    def _step(self, parts: list[Part]) -> bool:
        """Moves past the next mark; False when none is complete."""
        if self._block is not None:
            return self._in_block(self._block, parts)
        if self._close is not None:
            at, mark = self._find((self._close,))
        else:
            self._text = self._text.lstrip() if self._fresh else self._text
            at, mark = self._find(self._openings())
        if mark is None:
            marks = (self._close,) if self._close is not None else self._openings()
            if self._close is not None and not self._labelled and self._label.startswith(self._text.lstrip()):
                return False
            cut = len(self._text) - held(self._text, marks)
            text, self._text = self._text[:cut], self._text[cut:]
            self._say(text, parts)
            return False
        self._say(self._text[:at], parts)
        self._pass(mark, self._text[at + len(mark) :])
        return True

    def _openings(self) -> tuple[str, ...]:
        marks = [open_ for open_, _ in self._thoughts]
        marks += [block.open for block in self._blocks if not block.bare or self._silent]
        return tuple(marks)

    def _find(self, marks: tuple[str, ...]) -> tuple[int, str | None]:
        """The first mark in the text, of several at one place the longest. A bare one counts at the beginning alone."""
        found = [(at, -len(mark), mark) for mark in marks if (at := self._text.find(mark)) >= 0]
        bare = {block.open for block in self._blocks if block.bare}
        found = [item for item in found if item[2] not in bare or not self._text[: item[0]].strip()]
        return (min(found)[0], min(found)[2]) if found else (0, None)

    def _pass(self, mark: str, rest: str) -> None:
        self._space, self._fresh = "", True
        if self._close is not None:
            self._close = None
        else:
            close = dict(self._thoughts).get(mark)
            if close is not None:
                self._close, self._labelled = close, False
            else:
                self._block = next(block for block in self._blocks if block.open == mark)
                rest = mark + rest if self._block.bare else rest
        self._text = rest

    def _in_block(self, block: Block, parts: list[Part]) -> bool:
        begin = self._passed[-1] + 1 if self._passed else 0
        at = self._text.find(block.close, begin) if block.close is not None else -1
        if at < 0:
            return False
        try:
            block.calls(self._text[:at], self._schemas)
        except Unfinished:
            self._passed.append(at)
            return True
        except Malformed:
            at = self._passed[0] if self._passed else at
        self._cut_block(block, at, parts)
        return True

    def _cut_block(self, block: Block, at: int, parts: list[Part]) -> None:
        """The block ends with the mark that stands there."""
        close = block.close or ""
        body, self._text = self._text[:at], self._text[at + len(close) :]
        self._end_block(block, body, close, parts)

    def _is_call(self, block: Block, body: str) -> bool:
        try:
            return bool(block.calls(body, self._schemas))
        except Malformed:
            return False

    def _end_block(self, block: Block, body: str, close: str, parts: list[Part]) -> None:
        self._block, self._fresh, self._space, self._passed = None, True, "", []
        try:
            parts += block.calls(body, self._schemas)
            self._silent = False
        except Malformed:
            self._say(body if block.bare else block.open + body + close, parts)

    def _say(self, text: str, parts: list[Part]) -> None:
        """White space at the end waits for more text."""
        if self._close is not None and not self._labelled and text:
            text, self._labelled = text.lstrip(), True
            text = "" if text.strip() == self._label.strip() else text.removeprefix(self._label)
        if self._fresh:
            text = text.lstrip()
        if not text:
            return
        whole = self._space + text
        kept = whole.rstrip()
        self._space = whole[len(kept) :]
        if kept:
            parts.append(Said(kept, self._close is not None))
            self._fresh = False
            self._silent = self._silent and self._close is not None


def held(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of the text that begins a mark."""
    longest = max(map(len, marks), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(mark.startswith(end) for mark in marks):
            return length
    return 0


def stepped(step: Callable[[list[Part]], bool]) -> list[Part]:
    """The parts of as many steps as there are."""
    parts: list[Part] = []
    while step(parts):
        pass
    return merged(parts)


def merged(parts: list[Part]) -> list[Part]:
    """Neighbouring texts of one kind joined, calls as they are."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, Said) and isinstance(last, Said) and last.reasoning == part.reasoning:
            whole[-1] = Said(last.text + part.text, part.reasoning)
        else:
            whole.append(part)
    return whole
