"""The draft vocabulary: the tokens that a head can propose, the most frequent ones that it learns to foresee.

A head of K rows proposes draft ids 0 .. K - 1; in its file d2t [K] holds what is added to a draft id to give the
model's token id, and t2d [V] says which of the model's tokens can be proposed. Ids ascend in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from octavo.train.texts import TokenRun


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """kept: [K] token ids, ascending. size: V. covered: share of the text's tokens that are among them."""

    kept: torch.Tensor
    size: int
    covered: float

    @classmethod
    def frequent(cls, runs: Iterable[TokenRun], size: int, wanted: int) -> DraftVocabulary:
        """Of what the model wrote, where it wrote any. wanted 0, or no fewer than V: all tokens. Ties go to smaller
        ids."""
        counts = torch.zeros(size, dtype=torch.int64)
        for run in runs:
            counts += torch.bincount(torch.tensor(run.ids[run.begin :], dtype=torch.int64), minlength=size)
        if wanted == 0 or wanted >= size:
            return cls(torch.arange(size), size, 1.0)
        kept = torch.argsort(counts, descending=True, stable=True)[:wanted].sort().values
        return cls(kept, size, float(counts[kept].sum()) / max(float(counts.sum()), 1.0))

    @property
    def reduced(self) -> bool:
        return len(self.kept) < self.size

    @property
    def known(self) -> torch.Tensor:
        """bool [V]"""
        held = torch.zeros(self.size, dtype=torch.bool)
        held[self.kept] = True
        return held

    @property
    def draft_ids(self) -> torch.Tensor:
        """[V]: draft id of each token, -1 of one that cannot be proposed."""
        ids = torch.full((self.size,), -1, dtype=torch.int64)
        ids[self.kept] = torch.arange(len(self.kept))
        return ids

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a head's file says of it; nothing where all tokens can be proposed."""
        if not self.reduced:
            return {}
        return {"d2t": self.kept - torch.arange(len(self.kept)), "t2d": self.known}

    def config(self) -> dict[str, int]:
        return {"vocab_size": self.size, "draft_vocab_size": len(self.kept)}
