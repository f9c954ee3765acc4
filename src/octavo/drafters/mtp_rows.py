"""Rows of h that several modules take (mtp.py): those of this step, and the last few before it.

Module k takes token i + k + 1 beside row i, which is not known for the last k rows of a step: these rows are run once
more when it is, and so they are held. Held rows stand in an export that a run gathers anew, of the rows of its run
before and of those of the step. Where a run has no room for them they are let go: their entries stay as drafts made
them, which can cost a draft and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.drafters.port import DraftRow
from octavo.request import Row

Span = tuple[DraftRow, int, int]  # whose rows of h, from which index, how many


@dataclass(frozen=True, slots=True)
class Kept:
    """Of one request, the rows before index `end`: where they stand in the last run."""

    end: int
    rows: tuple[int, ...]


class Held:
    """most: rows that are held of a request. tokens, requests: of a run."""

    def __init__(self, most: int, tokens: int, requests: int) -> None:
        self._most = most
        self._limits = tokens, requests
        self._kept: dict[str, Kept] = {}

    def gather(self, fresh: Sequence[tuple[DraftRow, int]]) -> tuple[list[Span], list[Row], list[int]]:
        """fresh: rows with how many of h they have, which stand one after the other in the run of the step. Those with
        the held ones before them; then the run that gathers all, whose rows are numbered as
        theirs, and its sources: rows of the step, then of the run before."""
        step = sum(count for _, count in fresh)
        room, places = self._limits[0] - step, self._limits[1] - len(fresh)
        spans: list[Span] = []
        runs: list[Row] = []
        sources: list[int] = []
        kept: dict[str, Kept] = {}
        begin = 0
        for row, count in fresh:
            before = self._before(row)[-room:] if room > 0 else ()
            room -= len(before)
            sources += [step + place for place in before]
            sources += range(begin, begin + count)
            begin += count
            spans.append((row, row.row.start - len(before), len(before) + count))
            runs.append(_gathering(row.request.id, row.row.slot, len(before) + count))
            rows = range(max(len(sources) - min(self._most, len(before) + count), 0), len(sources))
            kept[row.request.id] = Kept(row.row.start + count, tuple(rows))
        for name, one in self._kept.items():
            if name not in kept and places > 0 and len(one.rows) <= room:
                kept[name] = Kept(one.end, tuple(range(len(sources), len(sources) + len(one.rows))))
                runs.append(_gathering(name, 0, len(one.rows)))
                sources += [step + place for place in one.rows]
                room, places = room - len(one.rows), places - 1
        self._kept = kept
        return spans, runs, sources

    def _before(self, row: DraftRow) -> tuple[int, ...]:
        one = self._kept.get(row.request.id)
        return one.rows if one is not None and one.end == row.row.start else ()

    def forget(self, request_id: str) -> None:
        self._kept.pop(request_id, None)


def _gathering(request_id: str, slot: int, count: int) -> Row:
    """A row that is told of no place."""
    return Row(request_id, slot, 0, (0,) * count, count, False)


def offsets(row: DraftRow) -> list[int]:
    """Rows of the step that stand for true tokens: the known ones, and accepted drafts."""
    return [*range(len(row.row.token_ids) - row.row.num_drafts), *row.result.accepted]


def followers(row: DraftRow) -> list[int]:
    """The token after each of them, as far as it is known."""
    start, end = row.row.start + 1, row.row.start + len(row.row.token_ids) - row.row.num_drafts
    if row.result.token_ids:
        return [*row.request.tokens(start, end), *row.result.token_ids]
    return row.request.tokens(start, min(end + 1, row.request.num_tokens))


def known(row: DraftRow) -> int:
    """Tokens that are known once the step is committed."""
    return row.request.num_tokens + len(row.result.token_ids)


def known_tokens(row: DraftRow, begin: int, count: int, drafts: Sequence[int]) -> list[int]:
    """So many from index `begin` on: true ones, then drafts, then any."""
    end, all_known = begin + count, row.request.num_tokens
    found = row.request.tokens(begin, min(end, all_known)) if begin < all_known else []
    after = [*row.result.token_ids, *drafts]
    found += after[max(begin - all_known, 0) : max(end - all_known, 0)]
    return [*found, *[0] * (count - len(found))]
