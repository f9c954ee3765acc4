"""The structures of one vocabulary, each compiled once; the last few are kept, and every output gets a copy.

Compiling takes from a millisecond to half a second and happens away from the step, in whatever thread asks first. The
library behind it is loaded when the first structure comes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from octavo.request import Structure
from octavo.types import Vocabulary

KEPT = 64  # compiled structures


class Matcher(Protocol):
    """Where one output stands in its structure: compiler.Matcher."""

    taken: int

    def mask(self, drafts: Sequence[int] = ()) -> Any: ...
    def accept(self, tokens: Sequence[int]) -> None: ...
    def copy(self) -> Matcher: ...


class Structures:
    """Thread-safe. vocabulary: called at the first use."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()  # of what is known: held for moments, so that a step never waits for a compiler
        self._compiling = threading.Lock()
        self._tokens: Any = None
        self._known: OrderedDict[Structure, Matcher] = OrderedDict()

    def check(self, structure: Structure) -> None:
        """Compiles it. Raises RequestError, UnsupportedError that say what cannot be done."""
        self._compiled(structure)

    def matcher(self, structure: Structure) -> Matcher:
        """For a new output. Raises as `check` does."""
        return self._compiled(structure).copy()

    def _compiled(self, structure: Structure) -> Matcher:
        found = self._find(structure)
        if found is not None:
            return found
        with self._compiling:
            compiler: Any = import_module("octavo.grammar.compiler")
            if self._tokens is None:
                self._tokens = compiler.token_table(self._vocabulary())
            found = compiler.compile_structure(structure, self._tokens)
        with self._lock:
            self._known[structure] = found
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found

    def _find(self, structure: Structure) -> Matcher | None:
        with self._lock:
            found = self._known.get(structure)
            if found is not None:
                self._known.move_to_end(structure)
            return found
