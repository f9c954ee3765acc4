"""What one output is bound to, as a mask over its next token: its form, and the limit of its reasoning."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from octavo.errors import OctavoError
from octavo.grammar.thoughts import ThoughtLimit


class Matcher(Protocol):
    """Where one output stands in its structure: compiler.Matcher."""

    taken: int

    def mask(self, drafts: Sequence[int] = ()) -> Any: ...
    def accept(self, tokens: Sequence[int]) -> None: ...
    def ahead(self) -> Sequence[int]: ...
    def copy(self) -> Matcher: ...


class Bounds:
    """One output; a function of its own tokens."""

    def __init__(self, matcher: Matcher | None, limit: ThoughtLimit | None) -> None:
        self._matcher = matcher
        self._limit = limit
        self.failure = ""  # why nothing may come any more

    def mask(self, output_ids: Sequence[int], drafts: Sequence[int], width: int) -> Any:
        """uint32, bit `id & 31` of word `id >> 5` set for every token below `width` that may come after the output and
        `drafts`; None where any may. A matcher that has failed allows nothing, which ends its request alone; what
        follows a draft that may not come is never asked for."""
        forced = None
        if self._limit is not None:
            self._limit.accept(output_ids[self._limit.taken :])
            forced = self._limit.forced(drafts)
        if self._matcher is None and forced is None:
            return None
        mask = np.zeros(-(-width // 32), np.uint32)
        if forced is not None:
            mask[forced >> 5] = np.uint32(1 << (forced & 31))
        if self._matcher is None:
            return mask
        try:
            self._matcher.accept(output_ids[self._matcher.taken :])
            may = self._matcher.mask(drafts)
        except OctavoError as error:
            self.failure = error.message
            return np.zeros_like(mask)
        if may is None:
            return None
        mask[: len(may)] = may if forced is None else mask[: len(may)] & may
        return mask

    def ahead(self, output_ids: Sequence[int]) -> Sequence[int]:
        """Tokens that will most likely come next, because nothing else can be spelled: proposals, no more."""
        if self._limit is not None:
            self._limit.accept(output_ids[self._limit.taken :])
            if closing := self._limit.ahead():
                return closing
        if self._matcher is None:
            return ()
        with contextlib.suppress(OctavoError):
            self._matcher.accept(output_ids[self._matcher.taken :])
            return self._matcher.ahead()
        return ()
