"""AWQ (arXiv 2306.00978): columns that the text uses much are scaled up before they are rounded, and what comes before
the layer is scaled down; then each group's range is clipped where that serves the text.

Both are chosen on a sample of what the layer eats. Legend: s samples, n columns, m rows, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.quantize.rounding import Codes, affine

POWERS = 20  # of the mean magnitude of a column, from 0 up to less than 1
CLIPS = 10  # shares of a group's range that are tried, from all of it down to half


def scales(weights: Sequence[torch.Tensor], x: torch.Tensor, magnitude: torch.Tensor, group: int) -> torch.Tensor:
    """[n]: what the columns of all weights [m, n] that eat x [s, n] are multiplied by. magnitude [n]: mean |x|."""
    best, least = torch.ones(x.shape[1]), torch.inf
    for power in range(POWERS):
        tried = magnitude.clamp(min=1e-4) ** (power / POWERS)
        tried = tried / (tried.max() * tried.min()).sqrt()
        error = 0.0
        for weight in weights:
            rounded = affine(weight * tried, group).values / tried
            error += float((x @ (rounded - weight).T).square().sum())
        if error < least:
            best, least = tried, error
    return best


def clipped(weight: torch.Tensor, x: torch.Tensor, group: int) -> Codes:
    """Codes of weight [m, n], each group of each row within the share of its range that loses least on x [s, n]."""
    m, n = weight.shape
    by_group = x.view(len(x), n // group, group).transpose(0, 1)
    square = by_group.transpose(1, 2) @ by_group  # [G, group, group]
    best, least = torch.ones(m, n // group), torch.full((m, n // group), torch.inf)
    for step in range(CLIPS):
        shrink = 1 - 0.5 * step / CLIPS
        away = (affine(weight, group, shrink).values - weight).view(m, -1, group).transpose(0, 1)  # [G, m, group]
        error = ((away @ square) * away).sum(-1).T
        better = error < least
        best, least = torch.where(better, shrink, best), torch.where(better, error, least)
    return affine(weight, group, best)
