"""Forms: what an output is to look like, as plain data that dialects write and the grammar room compiles.

    text "{"        these characters
    mark "<think>"  the token of that spelling where the vocabulary has one as a special token, else its characters;
                    nothing at all where that token ends the text, which the end of the form then does
    value SCHEMA    a JSON value. lenient: keywords that cannot be enforced are let go
    regex R         a text that matches wholly
    free R MARKS    a text that matches R wholly and holds none of the marks
    until MARK R    a text that matches R, and then the mark, its first
    closed R B MARK MARKS   a text that matches R wholly and holds none of the marks, the text B, the mark, its first
    given KIND S    a Structure of another kind
    seq, either     one after the other; one of several
    some FORM       once or more often. between: what parts them

Data: lists of strings, numbers and schemas, so that JSON holds them. Nothing here knows how they are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.request import Structure

Form = list[Any]
NOTHING: Form = ["seq"]
ANYTHING = "(?s:.*)"
TOO_LARGE = "the structure of the output is too large: "  # opens what is said when that shows at a later token


def text(characters: str) -> Form:
    return ["text", characters] if characters else NOTHING


def mark(spelling: str) -> Form:
    return ["mark", spelling]


def value(schema: Mapping[str, Any], *, lenient: bool = False) -> Form:
    return ["value", dict(schema), lenient]


def regex(pattern: str) -> Form:
    return ["regex", pattern]


def free(marks: Sequence[str], pattern: str = ANYTHING) -> Form:
    return ["free", pattern, *marks]


def until(spelling: str, pattern: str = ANYTHING) -> Form:
    return ["until", spelling, pattern]


def closed(pattern: str, before: str, spelling: str, without: Sequence[str] = ()) -> Form:
    return ["closed", pattern, before, spelling, list(without)]


def given(structure: Structure) -> Form:
    return json.loads(structure.source) if structure.kind == "form" else ["given", structure.kind, structure.source]


def seq(*forms: Form) -> Form:
    return ["seq", *forms]


def either(*forms: Form) -> Form:
    return forms[0] if len(forms) == 1 else ["either", *forms]


def maybe(form: Form) -> Form:
    return either(NOTHING, form)


def some(form: Form, between: Form = NOTHING) -> Form:
    return ["some", form, between]


def structure(form: Form) -> Structure:
    """The Structure that stands for it."""
    return Structure("form", json.dumps(form, ensure_ascii=False, separators=(",", ":")))
