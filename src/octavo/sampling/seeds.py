"""Seeds: minting one for a request that brings none, and deriving one for each child of n > 1."""

from __future__ import annotations

import secrets

from octavo.types import digest

MINTED_BITS = 53  # a minted seed is returned to the caller and must survive JSON numbers


def mint_seed() -> int:
    """A fresh seed in [0, 2**53)."""
    return secrets.randbits(MINTED_BITS)


def uniform(seed: int, *place: int) -> float:
    """A number in [0, 1) for this place."""
    return int.from_bytes(digest("uniform", seed % (1 << 64), *place)[:6], "little") / (1 << 48)


def child_seed(seed: int, child: int, n: int) -> int:
    """The seed of sequence `child` of `n`. A single sequence keeps the seed itself; of several, each gets its own."""
    seed %= 1 << 64
    return seed if n == 1 else int.from_bytes(digest("child", seed, child)[:8], "little")
