"""What an output is made of besides plain text, and how one family of models spells it.

A Dialect is data: signs that its chat templates hold, marks around reasoning, and blocks that hold calls. The reader
(reader.py) finds the marks in a stream of text; a block's own `calls` reads what stands between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from octavo.form import Form

Schemas = Mapping[str, Mapping[str, Any]]  # name of a declared tool -> JSON schema of its parameters


@dataclass(frozen=True, slots=True)
class Said:
    """Text, as far as it has come."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One whole tool call. arguments: the JSON text of an object."""

    name: str
    arguments: str


Part = Said | Call


class Malformed(ValueError):
    """What stands in a block is no call: it is shown as it was written."""


class Unfinished(Malformed):
    """It ends inside a string: the mark after it may belong to the call."""


@dataclass(frozen=True, slots=True)
class Block:
    """Calls between two marks. calls: (what stands between them, declared tools) -> calls, or Malformed.

    close None: the block runs to the end of the output. bare: `open` belongs to the calls and counts only where nothing
    was said before.
    """

    open: str
    close: str | None
    calls: Callable[[str, Schemas], list[Call]]
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """One that may be called. schema: of its parameters, an object. strict: its arguments must keep to the schema
    wholly, else to what of it can be enforced."""

    name: str
    schema: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """Calls as a model writes them: a mark, and all that follows it up to the end of the last call."""

    mark: str
    rest: Form


# (tools, whether several calls may come) -> the ways in which calls may be written, the usual one first.
Openings = Callable[[Sequence[Tool], bool], list[Opening]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """signs: texts of which a chat template holds every one. thoughts: marks around reasoning. label: a heading that
    stands at the beginning of all reasoning and belongs to its marks. id_length: of calls, where templates insist.
    openings: how calls are written, for outputs that are bound to it. bare: they stand at the beginning alone.
    """

    name: str
    signs: tuple[str, ...]
    blocks: tuple[Block, ...] = ()
    thoughts: tuple[tuple[str, str], ...] = ()
    label: str = ""
    id_length: int = 0
    openings: Openings | None = None
    bare: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that the reader must see, special token or not."""
        found = [mark for pair in self.thoughts for mark in pair]
        for block in self.blocks:
            found += [block.open] if block.close is None else [block.open, block.close]
        return tuple(found)


def one_call(value: Any) -> Call:
    """{"name", "arguments" or "parameters"}, the arguments an object or its JSON text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise Malformed("a call is an object with a name")
    arguments = value.get("arguments", value.get("parameters", {}))
    return Call(value["name"], arguments_text(parsed(arguments) if isinstance(arguments, str) else arguments))


def arguments_text(arguments: Any) -> str:
    """JSON text of an object."""
    if not isinstance(arguments, dict):
        raise Malformed("arguments are an object")
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None


def parsed(text: str) -> Any:
    """Strict JSON."""
    value, end = first_value(text, 0)
    if text[end:].strip():
        raise Malformed("text after the call")
    return value


def first_value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, and where it ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        kind = Unfinished if str(error).startswith("Unterminated string") else Malformed
        raise kind(str(error)) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def typed(text: str, schema: Any) -> Any:
    """A value that was written without quotes: text where the schema allows text alone, else the JSON that it spells,
    if it spells any."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else "string"
    if kinds == "string":
        return text
    try:
        return parsed(text)
    except Malformed:
        return text


def properties(schemas: Schemas, name: str) -> Mapping[str, Any]:
    """Schemas of the parameters of one tool."""
    found = schemas.get(name, {}).get("properties")
    return found if isinstance(found, Mapping) else {}


def some(calls: Sequence[Call]) -> list[Call]:
    """The calls of a block, at least one."""
    if not calls:
        raise Malformed("no call")
    return list(calls)
