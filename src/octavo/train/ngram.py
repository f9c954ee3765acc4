"""Counts of a text -> an n-gram model (drafters/ngram_file.py). Needs numpy alone.

Documents stand one after the other, an end of text between them.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.drafters.ngram_file import (
    FIXED,
    MAGIC,
    MOST_ORDER,
    NgramModel,
    arrays_of,
    padded,
    vocabulary_digest,
)
from octavo.errors import RequestError, UsageError
from octavo.text.tokenizer import Tokenizer
from octavo.train.texts import Material

HELD_OUT, MOST_HELD_OUT = 0.02, 5000  # share of the tokens, and most of them, that are told and not learnt
FEWEST = 64  # tokens of a text

Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class NgramReport:
    """rows, discounts: by order, from 1. perplexity, right: on text held out: of a token, and how often the likeliest
    token comes."""

    order: int
    tokens: int
    rows: tuple[int, ...]
    discounts: tuple[float, ...]
    bytes: int
    held_out: int
    perplexity: float
    right: float


def train(
    tokenizer: Tokenizer, given: Material, order: int, out: Path, progress: Progress, tokens: int | None = None
) -> NgramReport:
    """tokens: at most so many. Writes `out` at once, whole. Raises UsageError, RequestError for too little text."""
    if not 2 <= order <= MOST_ORDER:
        raise UsageError(f"train: --order is from 2 to {MOST_ORDER}, not {order}", param="order")
    ids = _ids(tokenizer, given, tokens, progress)
    held = min(int(len(ids) * HELD_OUT), MOST_HELD_OUT)
    learnt = ids[: len(ids) - held]
    if len(learnt) < FEWEST:
        raise RequestError(f"too little text: {len(learnt)} tokens, and it takes at least {FEWEST}", param="data")
    progress("counting", 0, 1)
    rows, discounts, arrays = counted(learnt, tokenizer.size, order)
    write(out, order, tokenizer, rows, discounts, arrays)
    model = NgramModel(out)
    perplexity, right = told(model, [int(token) for token in ids[len(ids) - held - order :]], order, progress)
    return NgramReport(order, len(learnt), rows, discounts, out.stat().st_size, held, perplexity, right)


def _ids(tokenizer: Tokenizer, given: Material, most: int | None, progress: Progress) -> Array:
    texts = [*given.documents, *(_said(request) for request in given.requests)]
    between = list(tokenizer.eos_ids[:1])
    found: list[int] = []
    for place, text in enumerate(texts):
        found += [*tokenizer.encode(text), *between]
        progress("tokens", place + 1, len(texts))
        if most is not None and len(found) >= most:
            break
    return np.array(found[:most], np.uint64)


def _said(request: Mapping[str, Any]) -> str:
    """All text of a line of a log."""

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from texts(value.get("content"))
        elif isinstance(value, Sequence):
            for each in value:
                yield from texts(each)

    return "\n".join(text for name in ("text", "messages", "prompt", "output") for text in texts(request.get(name)))


def counted(
    tokens: Array, vocab: int, order: int
) -> tuple[tuple[int, ...], tuple[float, ...], dict[tuple[int, str], Array]]:
    """(rows, discount of every order, arrays by level and name)."""
    keys, places = np.unique(tokens, return_inverse=True)
    levels, firsts, where = [keys], [np.zeros(0, np.int64)], [places]
    counts: list[Array] = []
    for n in range(2, order + 1):
        pairs = where[-1][: len(tokens) - n + 1].astype(np.uint64) * np.uint64(vocab) + tokens[n - 1 :]
        keys, first, places, times = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        levels.append(keys)
        firsts.append(first)
        where.append(places)
        if n == order:
            counts = [times]
    for n in range(order - 1, 0, -1):  # what stands before an n-gram: the (n + 1)-grams that end in it
        before = where[n - 1][firsts[n] + 1]
        counts.insert(0, np.bincount(before, minlength=len(levels[n - 1])))
    arrays: dict[tuple[int, str], Array] = {}
    for level, (keys, own) in enumerate(zip(levels, counts, strict=True)):
        parents = keys // np.uint64(vocab) if level else np.zeros(len(keys), np.uint64)
        arrays[level, "key"] = keys
        arrays[level, "count"] = own
        arrays[level, "ranked"] = np.lexsort((keys, -own.astype(np.int64), parents))
        if level + 1 < order:
            bounds = np.arange(len(keys) + 1, dtype=np.uint64) * np.uint64(vocab)
            begin, after = np.searchsorted(levels[level + 1], bounds), counts[level + 1]
            arrays[level, "begin"] = begin
            for name, values in (("total", after), ("kinds", (after > 0).astype(np.int64))):
                sums = np.concatenate(([0], np.cumsum(values)))
                arrays[level, name] = sums[begin[1:]] - sums[begin[:-1]]
    return tuple(map(len, levels)), tuple(map(_discount, counts)), arrays


def _discount(counts: Array) -> float:
    """A half where there is too little to estimate it."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once and twice else 0.5


def write(
    out: Path,
    order: int,
    tokenizer: Tokenizer,
    rows: Sequence[int],
    discounts: Sequence[float],
    arrays: Mapping[tuple[int, str], Array],
) -> None:
    body = bytearray()
    for level, name, width, count in arrays_of(order, rows):
        data = np.ascontiguousarray(arrays[level, name], np.dtype("<u8" if width == 8 else "<u4")).tobytes()
        body += data + bytes(padded(width * count) - len(data))
    head = FIXED.pack(MAGIC, order, tokenizer.size, vocabulary_digest(tokenizer), hashlib.sha256(body).digest())
    numbers = np.array(rows, "<u8").tobytes() + np.array(discounts, "<f8").tobytes()
    part = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(head + numbers + bytes(body))
        os.replace(part, out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}", param="out") from None


def told(model: NgramModel, ids: Sequence[int], order: int, progress: Progress) -> tuple[float, float]:
    """(perplexity, share of likeliest tokens that come) of ids[order:]."""
    bits, right, count = 0.0, 0, max(len(ids) - order, 0)
    for place in range(order, len(ids)):
        context = ids[place - order + 1 : place]
        bits -= math.log(model.chance(ids[place], context))
        right += model.likely(context, 1)[0][0] == ids[place]
        if place % 256 == 0:
            progress("held-out text", place - order, count)
    return (math.exp(bits / count), right / count) if count else (math.nan, math.nan)
