"""Tools of a chat request: which are declared, which may be called, and what an output says in their dialect."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import RequestError, UnsupportedError
from octavo.request import SamplingParams
from octavo.server.openai.shapes import ChatRequest
from octavo.text.dialects.dialect import Call, Dialect, Part, Schemas
from octavo.text.dialects.known import dialect_of, marks_of, reader_for, takes_tools
from octavo.text.dialects.reader import Reader
from octavo.text.tokenizer import Tokenizer

MAX_TOOLS = 128
TAIL = 32  # tokens of a prompt that show whether it ends in open reasoning
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_ALNUM = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Tools:
    """declared: as the template gets them. schemas: of those that may be called."""

    declared: Sequence[Mapping[str, Any]]
    schemas: Schemas
    parallel: bool


def read_tools(asked: ChatRequest) -> Tools:
    """Raises RequestError, UnsupportedError that name the field."""
    if len(asked.tools) > MAX_TOOLS:
        raise RequestError(f"tools: at most {MAX_TOOLS}, not {len(asked.tools)}", param="tools")
    functions = {}
    for place, tool in enumerate(asked.tools):
        name, schema = _function(tool, f"tools[{place}]")
        if name in functions:
            raise RequestError(f"tools[{place}]: {name} is declared twice", param=f"tools[{place}]")
        functions[name] = schema
    names = _callable(asked.tool_choice, functions)
    declared = [tool for tool in asked.tools if tool["function"]["name"] in names]
    return Tools(declared, {name: functions[name] for name in names}, asked.parallel_tool_calls)


def _function(tool: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """(name, schema of the parameters) of one tool."""
    if tool.get("type") != "function":
        raise UnsupportedError(f"{where}: tools of type {tool.get('type')!r} are not supported", param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is required", code="missing_field", param=f"{where}.function")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name: 1 to 128 letters, digits and _ . : -", param=f"{where}.function.name"
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise RequestError(f"{where}.function.parameters is a JSON schema", param=f"{where}.function.parameters")
    if function.get("strict"):
        raise UnsupportedError(f"{where}.function.strict is not supported", param=f"{where}.function.strict")
    return name, schema or {}


def _callable(choice: Any, functions: Mapping[str, Any]) -> list[str]:
    """Names of the tools that may be called."""
    if choice is None or choice == "auto":
        return list(functions)
    if choice == "none":
        return []
    if choice == "required" or (isinstance(choice, Mapping) and choice.get("type") == "function"):
        raise UnsupportedError("tool_choice: a call cannot be forced, only auto and none", param="tool_choice")
    allowed = choice.get("allowed_tools") if isinstance(choice, Mapping) else None
    if not isinstance(allowed, Mapping) or not isinstance(allowed.get("tools"), list):
        raise RequestError("tool_choice: auto, none, or allowed_tools with a list of tools", param="tool_choice")
    if allowed.get("mode", "auto") != "auto":
        raise UnsupportedError("tool_choice.allowed_tools.mode: only auto is supported", param="tool_choice")
    named = [tool.get("function", {}).get("name") for tool in allowed["tools"] if isinstance(tool, Mapping)]
    for name in named:
        if name not in functions:
            raise RequestError(f"tool_choice: {str(name)[:128]!r} is not among the tools", param="tool_choice")
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
        """Marks that are special tokens become text; where one call is the limit, its end is the output's."""
        pieces, marks = self._tokenizer.pieces, set(marks_of(self.dialect))
        shown = tuple(sorted(token for token in pieces.hidden if pieces.text(token) in marks))
        ends: tuple[str, ...] = ()
        if self._tools.schemas and not self._tools.parallel:
            ends = tuple(dict.fromkeys(block.close for block in self.dialect.blocks if block.close is not None))
        return replace(params, shown_special_ids=shown, stop=params.stop + ends)

    def reader(self, prompt: Sequence[int]) -> Reader | None:
        """For one output; None where nothing but text can come."""
        tail = self._tokenizer.decode(prompt[-TAIL:], skip_special=False)
        found = reader_for(self.dialect, self._tools.schemas, tail)
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
