"""The bytes that each token id stands for. Text is these bytes joined and read as UTF-8; nothing else decodes here.

Two alphabets: byte-level BPE spells each byte as one printable character; SentencePiece spells a space as U+2581 and a
byte that has no token as `<0xE6>`. Added tokens are spelled as they are, but for that space.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

_HEX = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and on, in ascending order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + rank): byte for rank, byte in enumerate(other)}


_ALPHABET = _byte_alphabet()


class PieceTable:
    """texts: spelling per id, None for an id without one. hidden: special ids. verbatim: added ids that are text.

    opening: what happens to a space that only marks the first word: kept, "one" dropped from the start of the text,
    or "all" dropped from the first token. within: the mark of a piece inside a word, where words have none (WordPiece).
    """

    def __init__(
        self,
        texts: Sequence[str | None],
        *,
        byte_level: bool,
        hidden: Collection[int] = (),
        verbatim: Collection[int] = (),
        space: str = "▁",
        byte_fallback: bool = True,
        opening: Literal["keep", "one", "all"] = "keep",
        within: str = "",
    ) -> None:
        self.size = len(texts)
        self.hidden = frozenset(hidden)
        self._texts = texts
        self._byte_level = byte_level
        self._verbatim = frozenset(verbatim) | self.hidden
        self._space = space
        self._byte_fallback = byte_fallback
        self._opening = opening
        self._within = within
        self._known: dict[int, bytes] = {}

    def text(self, token_id: int) -> str | None:
        """The spelling in the vocabulary."""
        return self._texts[token_id] if 0 <= token_id < self.size else None

    def piece(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """Bytes of one token. Ids beyond the vocabulary (padding rows of a model) stand for nothing."""
        if skip_special and token_id in self.hidden:
            return b""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._spell(token_id)
        return found

    def begin(self, piece: bytes) -> tuple[bytes, bool]:
        """The first token's bytes without the space that only marks a word, and whether the next one is first too."""
        if self._opening == "all":
            return piece.replace(b" ", b""), False
        if self._opening == "one":
            return piece.removeprefix(b" "), not piece
        return piece, False

    def join(self, ids: Sequence[int], *, skip_special: bool = True) -> bytes:
        parts: list[bytes] = []
        first = True
        for token_id in ids:
            if skip_special and token_id in self.hidden:
                continue
            piece = self.piece(token_id, skip_special=skip_special)
            if first:
                piece, first = self.begin(piece)
            parts.append(piece)
        return b"".join(parts)

    def _spell(self, token_id: int) -> bytes:
        text = self.text(token_id)
        if text is None:
            return b""
        if token_id in self._verbatim:
            return (text if self._byte_level else text.replace(self._space, " ")).encode()
        if self._byte_level:
            known = [_ALPHABET.get(char) for char in text]
            return text.encode() if None in known else bytes(byte for byte in known if byte is not None)
        if self._byte_fallback and (match := _HEX.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self._within:
            return (text.removeprefix(self._within) if text.startswith(self._within) else f" {text}").encode()
        return text.replace(self._space, " ").encode()
