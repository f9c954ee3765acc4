"""Drafters by name: what `--speculate` chooses among."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.drafters.ngram import NgramShelf
from octavo.drafters.null import NullDrafter
from octavo.drafters.port import Drafter
from octavo.drafters.suffix import SuffixShelf
from octavo.drafters.text import TextDrafter

KINDS: Mapping[str, Callable[[], Drafter]] = {
    "off": NullDrafter,
    "ngram": lambda: TextDrafter(NgramShelf(), adaptive=False),
    "suffix": lambda: TextDrafter(SuffixShelf(), adaptive=False),
    "auto": lambda: TextDrafter(SuffixShelf()),
}
