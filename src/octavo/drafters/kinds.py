"""Drafters by name: what `--speculate` chooses among. A kind may have an argument, behind a colon."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.drafters.draft_model import open_drafter
from octavo.drafters.heads import head_drafter
from octavo.drafters.mtp import module_drafter
from octavo.drafters.ngram import NgramShelf
from octavo.drafters.ngram_lm import NgramModelShelf
from octavo.drafters.null import NullDrafter
from octavo.drafters.port import Drafter
from octavo.drafters.recall import Recall
from octavo.drafters.suffix import SuffixShelf
from octavo.drafters.target import Target
from octavo.drafters.text import TextDrafter

__all__ = ["KINDS", "Target", "drafter_for"]

SHARE = 4  # of a step's rows, at most one in so many are drafts by default: prompts that wait have the rest
# config.SPECULATE has the same names, and says what follows the colon.
KINDS: Mapping[str, Callable[[str, Target], Drafter]] = {
    "off": lambda name, target: NullDrafter(),
    "ngram": lambda name, target: TextDrafter(NgramShelf(), adaptive=False),
    "suffix": lambda name, target: TextDrafter(SuffixShelf(), adaptive=False),
    "auto": lambda name, target: _auto(target),
    "mtp": lambda name, target: module_drafter(target),
    "model": open_drafter,
    "head": head_drafter,
    "ngramlm": lambda path, target: TextDrafter(NgramModelShelf(path, target)),
}


def _auto(target: Target) -> Drafter:
    """The default. Sums of the reference executor depend on the rows of a step: what is the default may not."""
    config = target.config
    if config.executor != "native":
        return NullDrafter()
    return TextDrafter(SuffixShelf(Recall), room=min(config.max_num_batched_tokens, config.max_logit_rows) // SHARE)


def drafter_for(name: str, target: Target) -> Drafter:
    """`name`: as EngineConfig.speculate has it. Raises what errors.py lists for what does not fit the target."""
    kind, _, argument = name.partition(":")
    return KINDS[kind](argument, target)
