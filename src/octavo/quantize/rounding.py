"""Numbers to whole ones with a scale for each group of columns, and back, in torch.

Scales are rounded to float16 before codes are chosen, so that codes fit the scale that the file holds.
Legend: m rows, n columns, G groups of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

TINY = 2.0**-24  # the least scale: float16's least number
STEPS = 10  # choices of codes that are tried for a group, its largest number at 8.9 to 7 steps from 0
PIECE = 1 << 16  # numbers rounded at a time, in cache


@dataclass(frozen=True, slots=True)
class Codes:
    """values = (q - zero) scale. q: int16 [m, n]; scale float32, zero int16 [m, G]."""

    q: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        m, groups = self.scale.shape
        whole = self.q.view(m, groups, -1) - self.zero[..., None]
        return (whole * self.scale[..., None]).view(self.q.shape)


@contextmanager
def one_thread() -> Iterator[None]:
    """For work in pieces that are too small to be shared: threads would wait for each other after every operator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def half(scale: torch.Tensor) -> torch.Tensor:
    """As a float16 holds it, 0 kept."""
    return torch.where(scale == 0, scale, scale.abs().clamp(TINY, 65504).copysign(scale)).half().float()


@one_thread()
def symmetric_scale(values: torch.Tensor, bits: int, group: int, weights: torch.Tensor | None = None) -> torch.Tensor:
    """[m, G]: of codes from -2^(bits-1) to 2^(bits-1) - 1. Of STEPS choices of codes that whose best scale leaves the
    least squared error, each column's counted `weights` [n] times; the largest number may stand at either end, so a
    scale may be negative. Of 8 bits: the largest magnitude over 127."""
    shares = torch.ones(group) if weights is None else weights.view(-1, group)
    return torch.cat([_scale(piece.view(len(piece), -1, group), bits, shares) for piece in pieces(values)])


def _scale(grouped: torch.Tensor, bits: int, shares: torch.Tensor) -> torch.Tensor:
    """What is left of |x|^2 by codes q and their best scale x.q / q.q is less by (x.q)^2 / q.q: that is maximized."""
    if bits == 8:
        return half(grouped.abs().amax(-1) / 127)
    least = -(1 << bits - 1)
    top = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    inverse, weighed = torch.where(top == 0, 0.0, 1 / top), grouped * shares
    best, most = torch.zeros(grouped.shape[:2]), torch.full(grouped.shape[:2], -1.0)
    for step in range(STEPS):
        codes = (grouped * ((least - 0.9 + 1.9 * step / (STEPS - 1)) * inverse)).round_().clamp_(least, -least - 1)
        product = torch.linalg.vecdot(codes, weighed)
        scale = product / torch.linalg.vecdot(codes * shares, codes).clamp(min=1e-30)
        better = product * scale > most
        best, most = torch.where(better, scale, best), torch.where(better, product * scale, most)
    return half(best)


def codes_of(grouped: torch.Tensor, scale: torch.Tensor, least: int, most: int) -> torch.Tensor:
    """The nearest, halves away from zero; 0 where the scale is."""
    ratio = torch.where(scale[..., None] == 0, 0.0, grouped / scale[..., None])
    return (ratio.abs() + 0.5).floor_().copysign_(ratio).clamp_(least, most)


@one_thread()
def symmetric(values: torch.Tensor, bits: int, group: int) -> Codes:
    """Signed codes, zero points 0."""
    least = -(1 << bits - 1)
    scale, q = symmetric_scale(values, bits, group), torch.empty(values.shape, dtype=torch.int16)
    for piece, each, out in zip(pieces(values), pieces(scale, values.shape[1]), pieces(q), strict=True):
        out.copy_(codes_of(piece.view(len(piece), -1, group), each, least, -least - 1).view(piece.shape))
    return Codes(q, scale, torch.zeros(scale.shape, dtype=torch.int16))


@one_thread()
def affine(values: torch.Tensor, group: int, shrink: torch.Tensor | float = 1.0) -> Codes:
    """Codes from 0 to 15 with zero points among them, over the range of each group times `shrink` ([m, G] or one)."""
    grouped = values.view(len(values), -1, group)
    high, low = grouped.amax(-1).clamp(min=0) * shrink, grouped.amin(-1).clamp(max=0) * shrink
    scale = half((high - low).clamp(min=TINY) / 15)
    zero = (-low / scale).round().clamp(0, 15)
    q = torch.empty(values.shape, dtype=torch.int16)
    columns = values.shape[1]
    for piece, each, middle, out in zip(
        pieces(values), pieces(scale, columns), pieces(zero, columns), pieces(q), strict=True
    ):
        codes = (piece.view(len(piece), -1, group) / each[..., None]).round_().add_(middle[..., None]).clamp_(0, 15)
        out.copy_(codes.view(piece.shape))
    return Codes(q, scale, zero.to(torch.int16))


def pieces(values: torch.Tensor, columns: int | None = None) -> tuple[torch.Tensor, ...]:
    """Views of some rows each, few enough that a matrix of so many columns (None: this one's) stays in cache."""
    found: tuple[torch.Tensor, ...] = torch.split(values, max(1, PIECE // (columns or values.shape[1])))
    return found


def nearest(values: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """The values of plain rounding: the largest magnitude of a group at the end of the scale."""
    grouped = values.view(len(values), -1, group)
    most = (1 << bits - 1) - 1
    scale = half(grouped.abs().amax(-1) / most)
    held = codes_of(grouped, scale, -most - 1, most) * scale[..., None]
    return held.view(values.shape)
