"""DeepSeek: marks of its own around all calls and around each; three spellings of what stands between them.

V3, R1  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
        ```json
        {"x": 1}
        ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
V3.1    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
V3.2    <｜DSML｜function_calls><｜DSML｜invoke name="f">
        <｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>
        </｜DSML｜invoke></｜DSML｜function_calls>
"""
# ruff: noqa: RUF001, RUF002  (these bars are the model's own)

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.form import NOTHING, Form, mark, seq, text
from octavo.form import some as some_of
from octavo.text.dialects.dialect import (
    Block,
    Call,
    Dialect,
    Malformed,
    Opening,
    Schemas,
    Tool,
    arguments_text,
    parsed,
    some,
)
from octavo.text.dialects.hermes import THINK
from octavo.text.dialects.spelling import json_arguments, one_of, parameters

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCED = re.compile(r"\s*([^\n`]+?)\s*\n```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)
_DSML = "｜DSML｜"
_INVOKE = re.compile(rf'\s*<{_DSML}invoke name="([^"]+)">(.*?)</{_DSML}invoke>\s*', re.DOTALL)
_PARAMETER = re.compile(
    rf'\s*<{_DSML}parameter name="([^"]+)" string="(true|false)">(.*?)</{_DSML}parameter>\s*', re.DOTALL
)


def calls(text: str, schemas: Schemas) -> list[Call]:
    return some([_call(piece.partition(_END)[0]) for piece in text.split(_BEGIN)[1:]])


def _call(text: str) -> Call:
    head, separator, rest = text.partition(_SEPARATOR)
    if not separator:
        raise Malformed("no separator")
    fenced = _FENCED.fullmatch(rest)
    if fenced is not None:
        return Call(fenced[1], arguments_text(parsed(fenced[2])))
    return Call(head.strip(), arguments_text(parsed(rest)))


def marked_up(text: str, schemas: Schemas) -> list[Call]:
    return some([Call(name, arguments_text(_parameters(body))) for name, body in _all(_INVOKE, text)])


def _parameters(body: str) -> dict[str, object]:
    return {name: text if plain == "true" else parsed(text) for name, plain, text in _all(_PARAMETER, body)}


def _all(pattern: re.Pattern[str], text: str) -> list[tuple[str, ...]]:
    """Groups of matches that follow one another and leave nothing."""
    found, at = [], 0
    while text[at:].strip():
        match = pattern.match(text, at)
        if match is None:
            raise Malformed("text between the calls")
        found.append(match.groups())
        at = match.end()
    return found


def openings(tools: Sequence[Tool], several: bool) -> list[Opening]:
    return _between(one_of(tools, lambda tool: _headed(tool.name, json_arguments(tool))), several, NOTHING)


def fenced(tools: Sequence[Tool], several: bool) -> list[Opening]:
    def spelled(tool: Tool) -> Form:
        return _headed("function", seq(text(f"{tool.name}\n```json\n"), json_arguments(tool), text("\n```")))

    return _between(one_of(tools, spelled), several, text("\n"))


def _headed(head: str, rest: Form) -> Form:
    return seq(text(head), mark(_SEPARATOR), rest)


def _between(call: Form, several: bool, between: Form) -> list[Opening]:
    whole = seq(mark(_BEGIN), call, mark(_END))
    return [Opening(OPEN, seq(some_of(whole, between) if several else whole, mark(CLOSE)))]


def invoked(tools: Sequence[Tool], several: bool) -> list[Opening]:
    call = seq(one_of(tools, _invoke), text(f"</{_DSML}invoke>\n"))
    rest = seq(text("\n"), some_of(call) if several else call)
    return [Opening(block.open, seq(rest, mark(block.close or ""))) for block in DSML.blocks]


def _invoke(tool: Tool) -> Form:
    def head(name: str, plain: bool) -> Form:
        return text(f'<{_DSML}parameter name="{name}" string="{"true" if plain else "false"}">')

    end = ("", f"</{_DSML}parameter>\n")
    without = (f"</{_DSML}parameter>", f"</{_DSML}invoke>", *(block.close or "" for block in DSML.blocks))
    return seq(text(f'<{_DSML}invoke name="{tool.name}">\n'), parameters(tool, head, end, without))


_BLOCKS = (Block(OPEN, CLOSE, calls),)
DIALECT = Dialect("deepseek", (_BEGIN,), _BLOCKS, THINK, openings=openings)
FENCED = Dialect("deepseek-fenced", (_BEGIN, "```json"), _BLOCKS, THINK, openings=fenced)
DSML = Dialect(
    "deepseek-dsml",
    (f"<{_DSML}",),
    tuple(Block(f"<{_DSML}{name}>", f"</{_DSML}{name}>", marked_up) for name in ("function_calls", "tool_calls")),
    THINK,
    openings=invoked,
)
