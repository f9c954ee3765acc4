"""An n-gram model on disk: sorted arrays, mapped, and what they say comes next.

A model of order N is a trie of the n-grams of a text, n = 1..N. Level n has a row for each n-gram that occurs, sorted;
the rows that go on from row i of level n - 1 are a range of level n. Chances are interpolated Kneser-Ney (Kneser and
Ney 1995, as Chen and Goodman 1998 write it, with one discount an order):

    p(w | h) = (max(c(h w) - D, 0) + D n(h) p(w | h')) / c(h)        h' is h without its first token
    p(w)     = (max(c(w) - D, 0) + D n / V) / c                      V: tokens of the vocabulary

c is how often an n-gram occurs where n = N, and below that how many different tokens stand before it; c(h) the sum of
c(h w) over w, n(h) how many w have any, D = n1 / (n1 + 2 n2) with n1, n2 the n-grams of that order of c = 1 and 2. A
context that does not occur is shortened. So chances add up to 1.

    magic 8 | u32 order | u32 V | 32 digest of the vocabulary | 32 SHA-256 of the body
    u64 rows[order] | f64 discount[order] | body, arrays one after the other, each at a multiple of 8:
    per level: u64 key[rows]: row of the prefix * V + last token    u32 count[rows]
               u32 ranked[rows]: the rows of each range, by count (level 1: of them all)
               and below the last level: u32 begin[rows + 1]   u32 total[rows]: c(h)   u32 kinds[rows]: n(h)
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import BadFileError, ConfigError, MissingFileError
from octavo.text.tokenizer import Tokenizer
from octavo.types import digest

MAGIC = b"OCTNGRM1"
FIXED = struct.Struct("<8sII32s32s")
MOST_ORDER = 8
LEVEL = ("key", "count", "ranked")
INNER = ("begin", "total", "kinds")  # of all levels but the last


def arrays_of(order: int, rows: Sequence[int]) -> list[tuple[int, str, int, int]]:
    """(level from 0, name, bytes of an element, elements), as they stand in the body."""
    found = []
    for level, count in enumerate(rows):
        names = (*LEVEL, *INNER) if level + 1 < order else LEVEL
        found += [(level, name, 8 if name == "key" else 4, count + (name == "begin")) for name in names]
    return found


def padded(size: int) -> int:
    return -(-size // 8) * 8


def vocabulary_digest(tokenizer: Tokenizer) -> bytes:
    """Of the spelling of every id."""
    pieces = tokenizer.pieces
    return digest("vocabulary", *(pieces.piece(token, skip_special=False) for token in range(tokenizer.size)))


class NgramModel:
    def __init__(self, path: str | Path) -> None:
        """Raises MissingFileError, BadFileError."""
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise self._bad("is empty") from None
        except OSError as error:
            raise MissingFileError(f"{path}: {error.strerror}", code="file_missing") from None
        self._levels: list[dict[str, Any]] = []
        self._read(memoryview(data))

    def _bad(self, what: str) -> BadFileError:
        return BadFileError(f"{self.path}: {what}", code="bad_ngram")

    def _read(self, data: memoryview) -> None:
        if len(data) < FIXED.size:
            raise self._bad("is no n-gram model (octavo train ngram makes one)")
        magic, order, vocab, vocabulary, body = FIXED.unpack_from(data)
        if magic != MAGIC:
            raise self._bad("is no n-gram model (octavo train ngram makes one)")
        if not 2 <= order <= MOST_ORDER or not vocab:
            raise self._bad(f"an order of {order} and a vocabulary of {vocab} cannot be")
        at = FIXED.size + 16 * order
        if len(data) < at:
            raise self._bad("ends inside its header")
        self.order, self.vocab_size, self._vocabulary = order, vocab, vocabulary
        self.rows: tuple[int, ...] = struct.unpack_from(f"<{order}Q", data, FIXED.size)
        self.discounts: tuple[float, ...] = struct.unpack_from(f"<{order}d", data, FIXED.size + 8 * order)
        arrays = arrays_of(order, self.rows)
        wanted = at + sum(padded(width * count) for _, _, width, count in arrays)
        if len(data) != wanted:
            raise self._bad(f"has {len(data)} bytes where its header says {wanted}")
        if hashlib.sha256(data[at:]).digest() != body:
            raise self._bad("its digest does not fit its contents: the file is damaged")
        self._levels = [{} for _ in range(order)]
        for level, name, width, count in arrays:
            part = data[at : at + width * count].cast("B").cast("Q" if width == 8 else "I")
            self._levels[level][name] = part
            at += padded(width * count)
        counts = self._levels[0]["count"]
        self._total, self._kinds = sum(counts), sum(1 for count in counts if count)
        if not self._total:
            raise self._bad("holds no n-grams")

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError when it was made of another vocabulary's ids."""
        if tokenizer.size != self.vocab_size or vocabulary_digest(tokenizer) != self._vocabulary:
            raise ConfigError(f"{self.path}: was trained with another tokenizer than the model has")

    def likely(self, context: Sequence[int], most: int) -> list[tuple[int, float]]:
        """At most so many tokens with their chances, the likeliest first, of those that followed the longest end of
        the context; and of shorter ones while there are too few."""
        nodes = self._nodes(context)
        found: dict[int, float] = {}
        for depth in range(len(nodes), -1, -1):
            for token in self._followers(depth, nodes[depth - 1] if depth else 0, most):
                if token not in found:
                    found[token] = self._chance(token, nodes)
            if len(found) >= most:
                break
        return sorted(found.items(), key=lambda choice: (-choice[1], choice[0]))[:most]

    def chance(self, token: int, context: Sequence[int]) -> float:
        return self._chance(token, self._nodes(context))

    # ---- inside
    def _nodes(self, context: Sequence[int]) -> list[int]:
        """Rows of the last 1, 2, ... tokens of the context, as far as something followed them."""
        nodes: list[int] = []
        for length in range(1, min(len(context), self.order - 1) + 1):
            row: int | None = 0
            for level, token in enumerate(context[len(context) - length :]):
                row = self._child(level, row or 0, token)
                if row is None:
                    return nodes
            if row is None or not self._levels[length - 1]["total"][row]:
                return nodes
            nodes.append(row)
        return nodes

    def _range(self, level: int, row: int) -> tuple[int, int]:
        """Rows of `level` that go on from `row` of the level before."""
        if level == 0:
            return 0, self.rows[0]
        begin = self._levels[level - 1]["begin"]
        return begin[row], begin[row + 1]

    def _child(self, level: int, row: int, token: int) -> int | None:
        low, high = self._range(level, row)
        keys, key = self._levels[level]["key"], row * self.vocab_size + token
        place = bisect_left(keys, key, low, high)
        return place if place < high and keys[place] == key else None

    def _followers(self, level: int, row: int, most: int) -> Sequence[int]:
        low, high = self._range(level, row)
        keys, ranked = self._levels[level]["key"], self._levels[level]["ranked"]
        return [keys[ranked[place]] - row * self.vocab_size for place in range(low, min(high, low + most))]

    def _chance(self, token: int, nodes: Sequence[int]) -> float:
        own = self._child(0, 0, token)
        count = 0 if own is None else self._levels[0]["count"][own]
        discount = self.discounts[0]
        p = (max(count - discount, 0.0) + discount * self._kinds / self.vocab_size) / self._total
        for level, row in enumerate(nodes, 1):
            place = self._child(level, row, token)
            count = 0 if place is None else self._levels[level]["count"][place]
            discount, before = self.discounts[level], self._levels[level - 1]
            p = (max(count - discount, 0.0) + discount * before["kinds"][row] * p) / before["total"][row]
        return float(p)
