"""How many drafts come true on text that was held out. Teacher-forced: every step stands behind the text's tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from octavo.train.head import Batch, Head
from octavo.train.losses import aims, overlap
from octavo.train.order import Acceptance
from octavo.train.target import Target
from octavo.train.vocabulary import DraftVocabulary

RANKS = 8  # choices of a step that are looked at


@torch.no_grad()
def acceptance(head: Head, target: Target, vocabulary: DraftVocabulary, batches: Iterable[Batch]) -> Acceptance:
    """Over rows that are learnt from (Batch.rows)."""
    overlaps, ranks = list[torch.Tensor](), list[torch.Tensor]()  # of a batch [n, depth], [n, depth, RANKS]
    for batch in batches:
        if not batch.rows.any():
            continue
        steps = list(zip(head.logits(batch), aims(target, vocabulary, batch), strict=True))
        overlaps.append(torch.stack([overlap(z, aim) for z, aim in steps], 1))
        ranks.append(torch.stack([_hits(z, aim.best) for z, aim in steps], 1))
    if not overlaps:
        return Acceptance()
    sampled, hits = torch.cat(overlaps).double(), torch.cat(ranks).double()
    greedy = hits[:, :, 0]
    return Acceptance(
        tuple(sampled.mean(0).tolist()),
        tuple(greedy.mean(0).tolist()),
        1 + float(sampled.cumprod(1).sum(1).mean()),
        1 + float(greedy.cumprod(1).sum(1).mean()),
        tuple(tuple(row) for row in hits.mean(0).tolist()),
    )


def _hits(z: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """[n, RANKS]: which of the likeliest choices is the model's first; a token outside the vocabulary is none."""
    return z.topk(min(RANKS, z.shape[1]), 1).indices == best[:, None]
