"""The structures of one vocabulary, each compiled once; the last few are kept, and every output gets a copy.

Compiling takes from a millisecond to half a second and happens away from the step, in whatever thread asks first. The
library behind it is loaded when the first structure comes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from typing import Any

from octavo.grammar.bounds import Bounds, Matcher
from octavo.grammar.thoughts import ThoughtLimit
from octavo.request import Request, Structure
from octavo.types import Vocabulary

KEPT = 64  # compiled structures


class Structures:
    """Thread-safe. vocabulary: called at the first use."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()  # of what is known: held for moments, so that a step never waits for a compiler
        self._compiling = threading.Lock()
        self._tokens: Any = None
        self._words: Vocabulary | None = None
        self._held: dict[str, Matcher] = {}  # request id -> of a request that waits or runs
        self._known: OrderedDict[Structure, Matcher] = OrderedDict()

    def check(self, structure: Structure) -> None:
        """Compiles it. Raises RequestError, UnsupportedError that say what cannot be done."""
        self._compiled(structure)

    def matcher(self, structure: Structure) -> Matcher:
        """For a new output. Raises as `check` does."""
        return self._compiled(structure).copy()

    def bounds(self, request: Request) -> Bounds:
        """Of a new output. Raises as `check` does."""
        wanted, thinking = request.params.structure, request.thinking
        matcher = None
        if wanted is not None:
            matcher = (self._held.get(request.id) or self._compiled(wanted)).copy()
        return Bounds(matcher, None if thinking is None else ThoughtLimit(thinking, self._spelling))

    def ready(self, request: Request) -> None:
        """Does what takes long of `bounds` and keeps it until `forget`, however many others come. Raises as `check`
        does."""
        if request.params.structure is not None:
            self._held[request.id] = self._compiled(request.params.structure)
        if request.thinking is not None:
            self._spelling(0)

    def forget(self, request_id: str) -> None:
        """The request has ended; unknown ids are ignored."""
        self._held.pop(request_id, None)

    def _spelling(self, token: int) -> bytes:
        """Bytes of a token, special or not; of none for ids beyond the vocabulary."""
        if self._words is None:
            self._words = self._vocabulary()
        known = self._words.token_bytes(token) if token < self._words.size else b""
        return known or self._words.decode([token], skip_special=False).encode()

    def _compiled(self, structure: Structure) -> Matcher:
        found = self._find(structure)
        if found is not None:
            return found
        with self._compiling:
            compiler: Any = import_module("octavo.grammar.compiler")
            if self._tokens is None:
                self._tokens = compiler.TokenTable(self._vocabulary())
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
