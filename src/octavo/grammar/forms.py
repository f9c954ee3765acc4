"""Forms (octavo.form) -> a grammar in the library's Lark, with the structures of other kinds that they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from octavo.form import ANYTHING

MAX_NODES = 20_000
# Where a structure of another kind stands: (kind, source) -> an expression, and what is to be declared beside it.
Given = Callable[[str, str], str]


class FormWriter:
    """One form. special: the id of a mark that is a special token, else None. ends: ids that end every text.

    value: the text of a JSON schema as the library takes it; given: the name of a grammar that was declared.
    """

    def __init__(
        self,
        special: Callable[[str], int | None],
        ends: Sequence[int],
        value: Callable[[dict[str, Any], bool], str],
        given: Given,
    ) -> None:
        self._special = special
        self._ends = frozenset(ends)
        self._value = value
        self._given = given
        self._rules: list[str] = []
        self._names: dict[str, str] = {}
        self._nodes = 0

    def write(self, form: Any) -> str:
        """Raises ValueError for what is no form."""
        start = self._expression(form)
        return "\n".join((f"start: {start}", *self._rules))

    def _expression(self, form: Any) -> str:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ValueError(f"at most {MAX_NODES} parts")
        match form:
            case ["text", str(characters)]:
                return json.dumps(characters)
            case ["mark", str(spelling)]:
                return self._mark(spelling)
            case ["value", dict(schema), bool(lenient)]:
                return self._rule(f"%json {self._value(schema, lenient)}")
            case ["regex", str(pattern)]:
                return f"/{slashed(pattern)}/"
            case ["free", str(pattern), *marks]:
                return self._rule(self._lacking(pattern, [str(spelling) for spelling in marks]), "F")
            case ["until", str(spelling), str(pattern)]:
                return self._until(spelling, slashed(pattern))
            case ["closed", str(pattern), str(before), str(spelling), list(without)]:
                return self._closed(pattern, before, spelling, without)
            case ["given", str(kind), str(source)]:
                return self._given(kind, source)
            case ["seq", *parts]:
                return " ".join(self._expression(part) for part in parts) or '""'
            case ["either", *parts] if parts:
                return f"({' | '.join(self._expression(part) for part in parts)})"
            case ["some", part, between]:
                inner = self._rule(self._expression(part))
                return f"{inner} ({self._expression(between)} {inner})*"
        raise ValueError(f"not a form: {str(form)[:80]}")

    def _mark(self, spelling: str) -> str:
        token = self._special(spelling)
        if token is None:
            return json.dumps(spelling)
        return '""' if token in self._ends else f"<[{token}]>"

    def _lacking(self, pattern: str, marks: Sequence[str]) -> str:
        """Special tokens are no text: no expression matches them."""
        spelled = [slashed(re.escape(mark)) for mark in marks if self._special(mark) is None]
        without = f" & ~/{ANYTHING}({'|'.join(spelled)}){ANYTHING}/" if spelled else ""
        return f"/{slashed(pattern)}/{without}"

    def _closed(self, pattern: str, before: str, spelling: str, without: Sequence[str]) -> str:
        """The text and what closes it are one word of the grammar: its first end is its end."""
        if self._special(spelling) is not None:
            wide = f"({pattern}){re.escape(before)}"
            return f"{self._rule(self._lacking(wide, without), 'F')} {self._mark(spelling)}"
        text = self._rule(self._lacking(pattern, (*without, spelling)), "F")
        return self._rule(f"{text} {json.dumps(before + spelling)}", "u", "[lazy]")

    def _until(self, spelling: str, pattern: str) -> str:
        if self._special(spelling) is not None:
            return f"/{pattern}/ {self._mark(spelling)}"
        return self._rule(f"/{pattern}{slashed(re.escape(spelling))}/", "u", "[lazy]")

    def _rule(self, body: str, kind: str = "r", options: str = "") -> str:
        """The name of a rule, equal ones once. A kind in upper case is a terminal."""
        known = f"{kind}{options}: {body}"
        if known not in self._names:
            self._names[known] = f"{kind}{len(self._names)}"
            self._rules.append(f"{self._names[known]}{options}: {body}")
        return self._names[known]


def slashed(pattern: str) -> str:
    """An expression as it stands between slashes, on one line."""
    escaped = re.sub(r"\\.|/", lambda found: "\\/" if found[0] == "/" else found[0], pattern, flags=re.DOTALL)
    return escaped.replace("\\\n", "\\n").replace("\n", "\\n").replace("\r", "\\r")
