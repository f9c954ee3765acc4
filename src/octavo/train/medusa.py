"""Medusa: a head for each of the next tokens, from one hidden state. Source: arXiv 2401.10774.

Head k of row t: residual blocks over the hidden state, then a linear; it proposes token t + k + 2. It begins as the
model's own head. Keys: {k}.{block}.linear.{weight,bias}, {k}.{blocks}.weight.
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.train.head import Batch, Head, ResidualBlock, output
from octavo.train.order import Acceptance
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary

BLOCKS = 1


class Medusa(Head):
    def __init__(self, target: Target, vocabulary: DraftVocabulary, depth: int, seed: int) -> None:
        super().__init__(target, vocabulary, depth)
        self.heads = torch.nn.ModuleList(
            torch.nn.Sequential(*(ResidualBlock(self.width) for _ in range(BLOCKS)), output(self.target_head))
            for _ in range(depth)
        )

    def logits(self, batch: Batch) -> list[torch.Tensor]:
        hidden = batch.hidden[batch.rows]
        return [head(hidden) for head in self.heads]

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.heads.state_dict())

    def config(self, found: Acceptance) -> dict[str, Any]:
        own = {"model_type": "medusa", "medusa_num_heads": self.depth, "medusa_num_layers": BLOCKS}
        ranks = (
            {"medusa_accuracies": [[round(share, 4) for share in row] for row in found.ranks]} if found.ranks else {}
        )
        return self.stated("MedusaModel") | own | ranks
