"""Tools of a chat request: which are declared, which may be called, and what an output says in their dialect."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import RequestError, UnsupportedError
from octavo.form import NOTHING, given, structure
from octavo.request import SamplingParams, Structure
from octavo.server.openai.shapes import ChatRequest
from octavo.text.dialects.bound import bound
from octavo.text.dialects.dialect import Call, Dialect, Part, Schemas, Tool
from octavo.text.dialects.known import dialect_of, marks_of, reader_for, takes_tools
from octavo.text.dialects.reader import Reader
from octavo.text.dialects.thinking import tail_of
from octavo.text.tokenizer import Tokenizer

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_ALNUM = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Tools:
    """declared: as the template gets them. callable: those that may be called; forced: one must be."""

    declared: Sequence[Mapping[str, Any]]
    callable: Sequence[Tool]
    parallel: bool
    forced: bool

    @property
    def binding(self) -> bool:
        """Whether they ask more of an output than to be read."""
        return self.forced or any(tool.strict for tool in self.callable)

    @property
    def schemas(self) -> Schemas:
        return {tool.name: tool.schema for tool in self.callable}


def read_tools(asked: ChatRequest) -> Tools:
    """Raises RequestError, UnsupportedError that name the field."""
    if len(asked.tools) > MAX_TOOLS:
        raise RequestError(f"tools: at most {MAX_TOOLS}, not {len(asked.tools)}", param="tools")
    functions: dict[str, Tool] = {}
    for place, stated in enumerate(asked.tools):
        tool = _function(stated, f"tools[{place}]")
        if tool.name in functions:
            raise RequestError(f"tools[{place}]: {tool.name} is declared twice", param=f"tools[{place}]")
        functions[tool.name] = tool
    names, forced = _callable(asked.tool_choice, functions)
    if forced and not names:
        raise RequestError("tool_choice: no tool is declared that could be called", param="tool_choice")
    declared = [tool for tool in asked.tools if tool["function"]["name"] in names]
    return Tools(declared, [functions[name] for name in names], asked.parallel_tool_calls, forced)


def _function(tool: Mapping[str, Any], where: str) -> Tool:
    if tool.get("type") != "function":
        raise UnsupportedError(f"{where}: tools of type {tool.get('type')!r} are not supported", param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is required", code="missing_field", param=f"{where}.function")
    name, schema, strict = function.get("name"), function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name: 1 to 128 letters, digits and _ . : -", param=f"{where}.function.name"
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise RequestError(f"{where}.function.parameters is a JSON schema", param=f"{where}.function.parameters")
    if strict not in (None, True, False):
        raise RequestError(f"{where}.function.strict is true or false", param=f"{where}.function.strict")
    return Tool(name, schema or {}, bool(strict))


def _callable(choice: Any, functions: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Names of the tools that may be called, and whether one must be."""
    if choice is None or choice in ("auto", "required"):
        return list(functions), choice == "required"
    if choice == "none":
        return [], False
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return _named([choice], functions), True
    allowed = choice.get("allowed_tools") if isinstance(choice, Mapping) else None
    if not isinstance(allowed, Mapping) or not isinstance(allowed.get("tools"), list):
        raise RequestError(
            "tool_choice: auto, none, required, a function, or allowed_tools with a list of tools", param="tool_choice"
        )
    if allowed.get("mode", "auto") not in ("auto", "required"):
        raise RequestError("tool_choice.allowed_tools.mode: auto or required", param="tool_choice")
    return _named(allowed["tools"], functions), allowed.get("mode") == "required"


def _named(tools: Sequence[Any], functions: Mapping[str, Any]) -> list[str]:
    named = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or name not in functions:
            raise RequestError(f"tool_choice: {str(name)[:128]!r} is not among the tools", param="tool_choice")
        named.append(name)
    return [name for name in functions if name in named]


class Hearing:
    """How the outputs of one request are to be read."""

    def __init__(self, tokenizer: Tokenizer, tools: Tools) -> None:
        """Raises UnsupportedError for tools that the model's template cannot take."""
        if tools.declared and not takes_tools(tokenizer.chat_template):
            raise UnsupportedError("tools: the chat template of this model has no place for them", param="tools")
        self.dialect: Dialect = dialect_of(tokenizer.chat_template)
        self._tokenizer = tokenizer
        self._tools = tools

    def params(self, params: SamplingParams) -> SamplingParams:
        """Marks that are special tokens become text; where one call is the limit, its end is the output's, unless a
        structure says so."""
        pieces, marks = self._tokenizer.pieces, set(marks_of(self.dialect))
        shown = tuple(sorted(token for token in pieces.hidden if pieces.text(token) in marks))
        ends: tuple[str, ...] = ()
        if self._tools.callable and not self._tools.parallel and params.structure is None:
            ends = tuple(dict.fromkeys(block.close for block in self.dialect.blocks if block.close is not None))
        return replace(params, shown_special_ids=shown, stop=params.stop + ends)

    def bound(self, prompt: Sequence[int], wanted: Structure | None, tools: Sequence[Tool]) -> Structure | None:
        """What an output must be: calls, the structure that is wanted, behind reasoning where there may be any. tools:
        those that may be called. Raises UnsupportedError."""
        tail = tail_of(self._tokenizer, prompt)
        form = None if wanted is None else given(wanted)
        found = bound(self.dialect, tail, tools, forced=self._tools.forced, several=self._tools.parallel, form=form)
        return wanted if found is None or found == ["seq", NOTHING, form] else structure(found)

    def reader(self, prompt: Sequence[int]) -> Reader | None:
        """For one output; None where nothing but text can come."""
        found = reader_for(self.dialect, self._tools.schemas, tail_of(self._tokenizer, prompt))
        return _FirstCall(found) if found is not None and not self._tools.parallel else found

    def call_id(self) -> str:
        if self.dialect.id_length:
            return "".join(secrets.choice(_ALNUM) for _ in range(self.dialect.id_length))
        return f"call_{secrets.token_hex(12)}"


class _FirstCall:
    """A reader that ends with the first call."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._called = False

    def push(self, text: str) -> list[Part]:
        return self._cut(self._reader.push(text))

    def finish(self) -> list[Part]:
        return self._cut(self._reader.finish())

    def _cut(self, parts: list[Part]) -> list[Part]:
        if self._called:
            return []
        first = next((place for place, part in enumerate(parts) if isinstance(part, Call)), None)
        if first is None:
            return parts
        self._called = True
        return parts[: first + 1]
