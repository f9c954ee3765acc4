"""The argument parser of every command: an error is one line, flags are never abbreviated, booleans can be negated."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from octavo.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print its usage and leave."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see `{self.prog} --help`")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Flags may stand before, between and after the other words."""
        options, unknown = self.parse_known_intermixed_args(self._plain_booleans(words))
        if unknown:
            self.error(f"unknown argument {unknown[0]}{self._meant(unknown[0])}")
        return options

    def _plain_booleans(self, words: Sequence[str]) -> list[str]:
        """`--flag=false` -> `--no-flag`: argparse gives such flags no value."""
        end = words.index("--") if "--" in words else len(words)
        plain = list(words)
        for place, word in enumerate(words[:end]):
            name, equals, value = word.partition("=")
            if equals and isinstance(self._option_string_actions.get(name), argparse.BooleanOptionalAction):
                try:
                    plain[place] = name if boolean(value) else name.replace("--", "--no-", 1)
                except ValueError as error:
                    raise UsageError(f"{name}: {error}", param=name[2:].replace("-", "_")) from None
        return plain

    def _meant(self, word: str) -> str:
        near = difflib.get_close_matches(word.partition("=")[0], self._option_string_actions, 1)
        return f" (did you mean {near[0]}?)" if near else ""


def boolean(text: str) -> bool:
    """Raises ValueError."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"not a boolean: {text!r} (write true or false)")
