"""What a whole output is bound to, in the words of a dialect: reasoning first, then calls, text, or a given form.

    forced   [reasoning] calls                        tools that must be called
    strict   [reasoning] text [calls]                 tools that may be called, whose calls must keep to their schemas
    formed   [reasoning] form                         no tools
    both     [reasoning] (calls | form)

Reasoning is bound to nothing but its closing mark. A prompt that opened it leaves no choice; one that closed it, or a
dialect without any, leaves none out.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import UnsupportedError
from octavo.form import NOTHING, Form, either, free, given, mark, maybe, regex, seq, some, structure, text, until
from octavo.request import Structure
from octavo.text.dialects import harmony
from octavo.text.dialects.dialect import Dialect, Opening, Tool
from octavo.text.dialects.spelling import json_arguments, one_of
from octavo.text.dialects.thinking import opens

SPACE = r"\s{0,8}"
UNTAGGED = r"(\s*[^{\s](?s:.*))?"  # text that no bare call begins


def bound(
    dialect: Dialect, tail: str, tools: Sequence[Tool], *, forced: bool, several: bool, form: Form | None
) -> Form | None:
    """None where an output may be anything. tail: the end of the prompt's text. form: of an output that is no call.

    Raises UnsupportedError where the dialect cannot say it.
    """
    if not forced and form is None and not any(tool.strict for tool in tools):
        return None
    if dialect.name == harmony.DIALECT.name:
        return _harmony(tools, forced=forced, form=form)
    openings = dialect.openings(tools, several) if dialect.openings is not None and tools else []
    if tools and not openings:
        raise UnsupportedError(
            "tools: calls cannot be bound to anything, the chat template of this model has no known way of calling",
            param="tools",
        )
    called = [seq(mark(opening.mark), opening.rest) for opening in openings]
    if forced:
        body = either(*called)
    elif form is not None:
        body = either(*called, form)
    else:
        body = _strict(dialect, openings)
    return seq(reasoning(dialect, tail), body)


def after_reasoning(dialect: Dialect, tail: str, wanted: Structure) -> Structure:
    """The same structure, behind what is left of the reasoning that the prompt has opened."""
    if not opens(dialect, tail):
        return wanted
    return structure(seq(reasoning(dialect, tail), given(wanted)))


def reasoning(dialect: Dialect, tail: str) -> Form:
    """What may or must stand before all else."""
    end = tail.rstrip()
    for open_, close in dialect.thoughts:
        if end.endswith(open_):
            return seq(until(close), regex(SPACE))
    if any(end.endswith(close) for _, close in dialect.thoughts):
        return NOTHING
    pairs = [seq(mark(open_), until(close), regex(SPACE)) for open_, close in dialect.thoughts]
    return maybe(either(*pairs)) if pairs else NOTHING


def _strict(dialect: Dialect, openings: Sequence[Opening]) -> Form:
    marks = [opening.mark for opening in openings]
    if dialect.bare:
        bare, *tagged = openings
        called = [
            seq(mark(bare.mark), bare.rest),
            *(seq(until(opening.mark, UNTAGGED), opening.rest) for opening in tagged),
        ]
        return either(*called, free(marks[1:], UNTAGGED))
    return either(*(seq(until(opening.mark), opening.rest) for opening in openings), free(marks))


def _harmony(tools: Sequence[Tool], *, forced: bool, form: Form | None) -> Form:
    """Messages one after the other; a call ends the output."""
    thought = seq(_message("analysis", until(harmony.END)), mark(harmony.START), text("assistant"))
    final = _message("final", form if form is not None else free(harmony.ENDS))
    begin = maybe(some(thought))
    if not tools:
        return seq(begin, final)
    call = one_of(tools, _call)
    if forced:
        return seq(begin, call)
    preamble = seq(_message("commentary", until(harmony.END)), mark(harmony.START), text("assistant"))
    return seq(begin, either(final, call, seq(preamble, call)))


def _message(channel: str, content: Form) -> Form:
    return seq(mark(harmony.CHANNEL), text(channel), mark(harmony.MESSAGE), content)


def _call(tool: Tool) -> Form:
    head = seq(mark(harmony.CHANNEL), text(f"commentary to=functions.{tool.name} "), mark(harmony.CONSTRAIN))
    return seq(head, text("json"), mark(harmony.MESSAGE), json_arguments(tool), mark(harmony.CALL))
