"""What training asks of a draft head of any kind, and what it shows it of a batch.

Every kind answers one question: standing at row t, where the model has computed the hidden state of token t and token
t + 1 is known, what is token t + 1 + i, for i = 1 .. depth? Its answer is held against the model's own distribution,
that of row t + i. Kinds that go on step by step are given the true tokens, never those that they would propose.

Legend: B sequences, L tokens of the longest, D hidden, K draft vocabulary, n rows that have all steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from octavo.train.features import Example
from octavo.train.order import Acceptance
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences side by side, filled up at the end. Masks [B, L]: inside, where there is a token; rows, those t that
    are learnt from: t + depth is inside the sequence, so that each has all steps, and the model wrote the draft tokens
    itself where it wrote any (no answer of the batch is so long: all with all steps)."""

    ids: torch.Tensor  # [B, L]
    hidden: torch.Tensor  # [B, L, D]
    taps: torch.Tensor  # [B, L, 3 D] or [B, L, 0]
    mass: torch.Tensor  # [B, L]
    best: torch.Tensor  # [B, L]
    inside: torch.Tensor
    rows: torch.Tensor
    depth: int

    @classmethod
    def of(cls, examples: Sequence[Example], depth: int) -> Batch:
        def padded(name: str) -> torch.Tensor:
            return torch.nn.utils.rnn.pad_sequence([getattr(one, name) for one in examples], batch_first=True)

        ids = padded("ids")
        lengths = torch.tensor([len(one.ids) for one in examples])
        begins = torch.tensor([one.begin for one in examples])
        places = torch.arange(ids.shape[1])
        inside = places < lengths[:, None]
        whole = places + depth < lengths[:, None]
        answered = whole & (places >= begins[:, None] - 1)
        rows = answered if answered.any() else whole
        hidden, taps, mass, best = (padded(name) for name in ("hidden", "taps", "mass", "best"))
        return cls(ids, hidden, taps, mass, best, inside, rows, depth)

    def ahead(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """[n, ...]: of each row t, what stands at t + step in values [B, L, ...]."""
        rows = self.rows[:, : self.rows.shape[1] - step]
        return values[:, step:][rows]

    def moved(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """[B, L, ...]: of every row t, what stands at t + step; zeros beyond the end."""
        return torch.cat((values[:, step:], torch.zeros_like(values[:, :step])), 1)


class Head(torch.nn.Module, ABC):
    """A draft head of one kind. The model's embedding and head are not trained and are no parameters."""

    def __init__(self, target: Target, vocabulary: DraftVocabulary, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.vocabulary = vocabulary
        self.width = target.hidden_size
        self.embedding = target.embedding
        self.target_head = target.head[vocabulary.kept]

    @abstractmethod
    def logits(self, batch: Batch) -> list[torch.Tensor]:
        """Of each step, f32 or bf16 [n, K]."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the names of the public layout."""

    @abstractmethod
    def config(self, found: Acceptance) -> dict[str, Any]:
        """config.json of a head that is worth so much."""

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[ids]

    def stated(self, architecture: str) -> dict[str, Any]:
        """What every kind's config.json says."""
        return {
            "architectures": [architecture],
            "hidden_size": self.width,
            **self.vocabulary.config(),
            "torch_dtype": "bfloat16",
        }


class ResidualBlock(torch.nn.Module):
    """x + SiLU(W x + b), the identity at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.silu(self.linear(x))


def output(weight: torch.Tensor) -> torch.nn.Linear:
    """A linear without bias that begins as a copy of `weight`."""
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = torch.nn.Parameter(weight.clone())
    return linear
