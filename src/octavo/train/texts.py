"""What heads learn from: texts and requests -> sequences of token ids.

Text is cut into windows as it comes. A request log has a JSON object a line, with text or ids: {"prompt", "output"},
{"messages"}, whose last answer is the output, {"text"}, or such an object under "body". A request that is to be
answered may say its own "temperature".
"""

from __future__ import annotations

import ast
import json
import math
import random
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from octavo.errors import BadFileError, MissingFileError, RequestError
from octavo.text.tokenizer import Tokenizer
from octavo.train.order import QUESTIONS, STDLIB, HeadOrder
from octavo.train.questions import questions
from octavo.types import digest

SUFFIXES = (".txt", ".md", ".rst", ".py", ".text")  # of a folder's files that are read
SHORTEST = 32  # tokens of a sequence, and characters of a piece of documentation times ten
Encode = Callable[[Sequence[Mapping[str, Any]]], list[int]]  # messages -> a prompt in the model's template


@dataclass(frozen=True, slots=True)
class TokenRun:
    """begin: the first token that the model answered with; 0: all is text."""

    ids: tuple[int, ...]
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is to go on from. temperature: the request's own, None: the order's."""

    ids: tuple[int, ...]
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """documents: texts in order. requests: lines of a log. Exactly one of both has something."""

    documents: tuple[str, ...] = ()
    requests: tuple[Mapping[str, Any], ...] = ()

    @property
    def digest(self) -> str:
        lines = [json.dumps(one, sort_keys=True) for one in self.requests]
        return digest("material", *self.documents, *lines).hex()


def material(data: str) -> Material:
    """Raises MissingFileError and BadFileError for what cannot be read."""
    if data == STDLIB:
        return Material(tuple(_library()))
    if data == QUESTIONS:
        return Material(requests=tuple(_asked(number, text) for number, text in enumerate(questions())))
    path = Path(data)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise MissingFileError(f"{path}: holds no text ({', '.join(SUFFIXES)})")
        return Material(tuple(map(_text, files)))
    if path.suffix == ".jsonl":
        return Material(requests=tuple(_lines(path)))
    return Material((_text(path),))


def _asked(number: int, text: str) -> Mapping[str, Any]:
    """Every second one is to be answered greedily: heads are to foresee both."""
    own = {} if number % 2 else {"temperature": 0.0}
    return {"messages": [{"role": "user", "content": text}], **own}


def _library() -> Iterator[str]:
    """The language reference, then the documentation of modules, classes and functions, file by file."""
    yield from (topics[name] for name in sorted(topics))
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text and len(text) > 10 * SHORTEST:
                    yield text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path}: not UTF-8 (offset {error.start})", code="bad_text") from None
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from None


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        inner = value.get("body", value) if isinstance(value, dict) else None
        if not isinstance(inner, dict) or not {"prompt", "messages", "text"} & inner.keys():
            what = "an object with prompt, messages or text"
            raise BadFileError(f"{path}: line {number} is not {what}", code="bad_log")
        yield inner


class Reader:
    """Material as sequences of one model's tokens. encode: its chat template, None where it has none."""

    def __init__(self, order: HeadOrder, tokenizer: Tokenizer, encode: Encode | None) -> None:
        self._order = order
        self._tokenizer = tokenizer
        self._encode = encode
        self._opening = tokenizer.encode("", add_special=True)[:1]

    def windows(self, given: Material) -> list[TokenRun]:
        """At most order.tokens of text as it stands: answers of a log with their prompts, windows of documents."""
        if given.requests:
            found = [one for one in map(self._answered, given.requests) if one is not None]
        else:
            found = list(self._cut(given.documents))
        kept = _bounded(found, self._order.tokens)
        if len(kept) < 2:
            said = "two sequences: one to learn from and one to be held out"
            raise RequestError(f"{self._order.data}: too little text; it takes at least {said}", param="data")
        return kept

    def prompts(self, given: Material) -> list[Prompt]:
        """Prompts for the model to go on from, as many as order.tokens leaves room for."""
        order = self._order
        most = max(order.tokens // (order.prompt + order.generate), 2)
        source = map(self._asked, given.requests) if given.requests else map(Prompt, self._openings(given.documents))
        found = [prompt for prompt in source if prompt.ids]
        random.Random(order.seed).shuffle(found)
        if len(found) < 2:
            raise RequestError(f"{order.data}: holds fewer than two prompts", param="data")
        return found[:most]

    # ---- inside
    def _cut(self, documents: Iterable[str]) -> Iterator[TokenRun]:
        size, held = self._order.window - len(self._opening), list[int]()
        shuffled = list(documents)
        random.Random(self._order.seed).shuffle(shuffled)
        for text in shuffled:
            held += self._tokenizer.encode(text + "\n\n")
            for begin in range(0, len(held) - size + 1, size):
                yield TokenRun((*self._opening, *held[begin : begin + size]))
            held = held[len(held) - len(held) % size :]
        if len(held) >= SHORTEST:
            yield TokenRun((*self._opening, *held))

    def _openings(self, documents: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Beginnings of texts, and of what stands every four prompts behind them."""
        width, draw = self._order.prompt, random.Random(f"chat:{self._order.seed}")
        for text in documents:
            ids = self._tokenizer.encode(text)
            for begin in range(0, len(ids) - width // 2, 4 * width):
                piece = ids[begin : begin + width]
                asked = draw.random() < self._order.chat
                yield self._as_message(piece) if asked else (*self._opening, *piece)

    def _as_message(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._template([{"role": "user", "content": self._tokenizer.decode(ids)}]))

    def _asked(self, line: Mapping[str, Any]) -> Prompt:
        """The prompt of a request, at most a window less what is generated."""
        messages, temperature = line.get("messages"), line.get("temperature")
        if messages:
            spoken = messages[:-1] if messages[-1].get("role") == "assistant" else messages
            ids = tuple(self._template(spoken))
        else:
            ids = self._ids(line.get("prompt", line.get("text")), first=True)
        if temperature is not None and not (isinstance(temperature, (int, float)) and 0 <= temperature < math.inf):
            raise RequestError(f"{self._order.data}: a temperature is {temperature!r}, not a number", param="data")
        return Prompt(ids[: self._order.window - self._order.generate], temperature)

    def _answered(self, line: Mapping[str, Any]) -> TokenRun | None:
        messages, output = line.get("messages"), line.get("output", line.get("completion", line.get("response")))
        if messages:
            if messages[-1].get("role") != "assistant":
                return None
            prompt, output = tuple(self._template(messages[:-1])), str(messages[-1].get("content"))
        elif "prompt" in line and output is not None:
            prompt = self._ids(line["prompt"], first=True)
        else:
            prompt, output = (), line.get("text")
        ids = (*prompt, *self._ids(output, first=not prompt))[: self._order.window]
        return TokenRun(ids, min(len(prompt), len(ids))) if len(ids) >= SHORTEST else None

    def _template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if self._encode is None:
            raise RequestError(f"{self._order.model}: has no chat template for messages", param="data")
        return self._encode(messages)

    def _ids(self, given: Any, *, first: bool) -> tuple[int, ...]:
        """Of a text, or ids as they stand. first: at the beginning of a sequence."""
        if isinstance(given, str):
            return (*(self._opening if first else ()), *self._tokenizer.encode(given))
        if isinstance(given, list) and all(isinstance(one, int) and 0 <= one < self._tokenizer.size for one in given):
            return tuple(given)
        raise RequestError(f"{self._order.data}: a prompt or an output is neither text nor token ids", param="data")


def _bounded(found: Sequence[TokenRun], tokens: int) -> list[TokenRun]:
    kept, held = list[TokenRun](), 0
    for one in found:
        if held + len(one.ids) > tokens and len(kept) >= 2:
            break
        kept.append(one)
        held += len(one.ids)
    return kept
