"""What a head is taught by: its distributions q over the draft vocabulary against the model's p, step by step.

    soft   - sum p log q, p over the draft vocabulary alone and made to sum to 1; rows whose most likely token is not
           in it do not count
    hard   - log q(token of the text); rows whose token is not in the draft vocabulary do not count
    tv     1 - overlap; overlap = sum min(p, q)
    e2e    1 - (1 / depth) sum_j prod_{i <= j} overlap_i: the share of drafts that sampling accepts

Steps of soft, hard and tv weigh decay^(i - 1). p is never differentiated. Sources: arXiv 2401.10774 (Medusa),
2503.01840 (EAGLE-3), 2606.12370 (end-to-end).

Legend: n rows, K draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from octavo.train.head import Batch
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary


class Overlap(torch.autograd.Function):
    """sum_v min(p_v, softmax(z)_v) of each row. d/dz_j = q_j ([q_j <= p_j] - S), S = sum_v [q_v <= p_v] q_v."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        q = z.softmax(1)
        ctx.save_for_backward(q, q <= p)
        return torch.minimum(p, q).sum(1)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, None]:
        q, below = ctx.saved_tensors
        inside = q * below
        share = inside.sum(1, keepdim=True)
        return given[0][:, None] * (inside - q * share), None


@dataclass(frozen=True, slots=True)
class Aim:
    """Of one step: the model's logits over the draft vocabulary [n, K], the log of the sum over all tokens [n], its
    most likely token as a draft id [n] and the text's, -1 where it is none."""

    z: torch.Tensor
    mass: torch.Tensor
    best: torch.Tensor
    text: torch.Tensor

    def p(self) -> torch.Tensor:
        return (self.z - self.mass[:, None]).exp()


def aims(target: Target, vocabulary: DraftVocabulary, batch: Batch) -> list[Aim]:
    """One a step. The model's head runs once over the batch."""
    ids = vocabulary.draft_ids
    with torch.no_grad():
        z = target.logits(batch.hidden, vocabulary.kept)
        best, text = ids[batch.best], ids[batch.ids].masked_fill(~batch.inside, -1)
        # the text's token of step i stands one row further than the distribution that it was drawn from
        text = functional.pad(text, (0, 1), value=-1)[:, 1:]
        return [
            Aim(*(batch.ahead(values, step) for values in (z, batch.mass, best, text)))
            for step in range(1, batch.depth + 1)
        ]


def loss(name: str, logits: Sequence[torch.Tensor], given: Sequence[Aim], decay: float) -> torch.Tensor:
    """A mean over rows, summed over steps (e2e: of all steps together)."""
    if name == "e2e":
        ahead, total = torch.ones(len(logits[0])), torch.zeros(())
        for z, aim in zip(logits, given, strict=True):
            ahead = ahead * overlap(z, aim)
            total = total + ahead.mean()
        return 1 - total / len(logits)
    total = torch.zeros(())
    for step, (z, aim) in enumerate(zip(logits, given, strict=True)):
        total = total + decay**step * _STEPS[name](z.float(), aim)
    return total


def overlap(z: torch.Tensor, aim: Aim) -> torch.Tensor:
    """[n]"""
    found: torch.Tensor = Overlap.apply(z.float(), aim.p())  # type: ignore[no-untyped-call]
    return found


def _soft(z: torch.Tensor, aim: Aim) -> torch.Tensor:
    counted = aim.best >= 0
    per_row = -(aim.z.softmax(1) * z.log_softmax(1)).sum(1)
    return (per_row * counted).sum() / counted.sum().clamp(min=1)


def _hard(z: torch.Tensor, aim: Aim) -> torch.Tensor:
    summed = functional.cross_entropy(z, aim.text, ignore_index=-1, reduction="sum")
    return summed / (aim.text >= 0).sum().clamp(min=1)


def _tv(z: torch.Tensor, aim: Aim) -> torch.Tensor:
    return 1 - overlap(z, aim).mean()


_STEPS = {"soft": _soft, "hard": _hard, "tv": _tv}
