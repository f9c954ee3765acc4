"""One request as a workload states it: when it comes, what its prompt is made of, how much it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PIECE_IDS = 512  # ids that one content has; longer pieces are several contents


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one content: two prompts that begin with the same pieces share them. tokens: at most PIECE_IDS."""

    content: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """at: seconds from the start. output_tokens: it ends there. abort_after: seconds after which its client is gone."""

    at: float
    pieces: tuple[Piece, ...]
    output_tokens: int
    tenant: str = ""
    priority: int = 0
    abort_after: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids in which equal contents are equal and others differ."""
        ids: list[int] = []
        for piece in self.pieces:
            first = piece.content * PIECE_IDS % 2**30
            ids.extend(range(first, first + piece.tokens))
        return tuple(ids)


def pieces_of(contents: Sequence[int], tokens: int) -> tuple[Piece, ...]:
    """`tokens` tokens over contents of PIECE_IDS each, the last one cut."""
    return tuple(
        Piece(content, min(PIECE_IDS, tokens - place * PIECE_IDS))
        for place, content in enumerate(contents)
        if tokens > place * PIECE_IDS
    )
