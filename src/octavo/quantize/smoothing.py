"""SmoothQuant (arXiv 2211.10438): large activations are made smaller and their columns of the weights larger, so that
eight bits a row hold both. Legend: s samples, m rows, n columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.quantize.rounding import Codes, symmetric

POWER = 0.5  # of the largest activation; the rest goes to the weights


def scales(weights: Sequence[torch.Tensor], largest: torch.Tensor) -> torch.Tensor:
    """[n]: what the columns of all weights [m, n] are multiplied by. largest [n]: of |x|."""
    columns = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).clamp(min=1e-5)
    return (largest.clamp(min=1e-5) ** POWER / columns ** (1 - POWER)).clamp(min=1e-5)


def rows(weight: torch.Tensor) -> Codes:
    """Eight bits, one scale a row."""
    return symmetric(weight, 8, weight.shape[1])


def tokens(x: torch.Tensor) -> torch.Tensor:
    """x [s, n] as eight bits with one scale a row hold it."""
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round() * scale
