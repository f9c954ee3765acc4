"""GPTQ (arXiv 2210.17323): columns are rounded one after another, and what each one loses is made up for by those that
follow, so that the layer's answers to the calibration text change least.

Groups keep their scales and columns are taken by how much the text uses them, so that the file's order is untouched.
Legend: m rows, n columns, G groups, H [n, n] = X^T X of what the layer eats.
"""

from __future__ import annotations

import torch

from octavo.quantize.rounding import Codes, codes_of, symmetric_scale

BLOCK = 128  # columns whose corrections reach the rest together
DAMPING = 0.01  # of the mean of H's diagonal


def gptq(weight: torch.Tensor, h: torch.Tensor, bits: int, group: int) -> Codes:
    """weight float32 [m, n]; h float64. Signed codes."""
    m, n = weight.shape
    least = -(1 << bits - 1)
    scale = symmetric_scale(weight, bits, group, _shares(h))
    order = torch.argsort(h.diagonal(), descending=True, stable=True)
    upper = factor(h[order][:, order])
    left, q = weight[:, order].double(), torch.empty(m, n)
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        block, lost = left[:, begin:end], torch.zeros(m, end - begin, dtype=torch.float64)
        for i in range(end - begin):
            column, at = block[:, i].clone(), order[begin + i]
            each = scale[:, at // group].double()
            q[:, at] = codes_of(column[:, None], each, least, -least - 1)[:, 0].float()
            lost[:, i] = (column - q[:, at].double() * each) / upper[begin + i, begin + i]
            block[:, i:] -= lost[:, i : i + 1] * upper[begin + i, begin + i : end]
        left[:, end:] -= lost @ upper[begin:end, end:]
    return Codes(q.to(torch.int16), scale, torch.zeros(scale.shape, dtype=torch.int16))


def factor(h: torch.Tensor) -> torch.Tensor:
    """Upper Cholesky factor of (H + damping)^-1, float64."""
    diagonal = h.diagonal()
    damped = h.clone()
    damped.diagonal().copy_(torch.where(diagonal > 0, diagonal, 1.0) + DAMPING * diagonal.mean().clamp(min=1e-30))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)


def _shares(h: torch.Tensor) -> torch.Tensor:
    """How much each column counts, float32 [n], 1 on average."""
    diagonal = h.diagonal()
    return (diagonal / diagonal.mean().clamp(min=1e-30)).clamp(min=1e-6).float()
