"""The step header: one flat array of int32 that says everything a program reads of its step.

Filled by native/bind_header.cpp, read by every backend (native/header.h mirrors FIELDS). Order of FIELDS is order in
memory.

    T tokens, R logit rows, N requests, C copies, S snapshots taken, U words of table updates.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 2
NUM_SCALARS: Final = 7  # version, T, R, N, C, S, U

FLAG_NO_WRITE: Final = 1  # this token's KV is in the cache already: compute the row, do not write

# name -> (symbol, a, b): length a * symbol + b
FIELDS: Final[dict[str, tuple[str, int, int]]] = {
    "token": ("T", 1, 0),
    "position": ("T", 1, 0),  # rotary position
    "index": ("T", 1, 0),  # place in the request's storage; differs from position for tree drafts only
    "request": ("T", 1, 0),  # which of the N requests of this step
    "adapter": ("T", 1, 0),  # 0 none
    "flags": ("T", 1, 0),
    "parent": ("T", 1, 0),  # tree drafts: step row of the parent token; -1 for every other token
    "source_row": ("T", 1, 0),  # drafter programs: row of the exported value to take
    "slot": ("N", 1, 0),
    "row_begin": ("N", 1, 1),
    "context": ("N", 1, 0),  # tokens in the cache before this step's first
    "firm": ("N", 1, 0),  # of its tokens, those that enter recurrent state; drafts follow them
    "replay": ("N", 1, 0),  # tokens before its first that are taken from its slot's tail into the state
    "restore": ("N", 1, 0),  # snapshot that the slot's state starts from; 0: itself, or zeros where context is 0
    "logit_row": ("R", 1, 0),
    "copies": ("C", 3, 0),  # (slot, source index, target index), done before anything else
    "snapshots": ("S", 3, 0),  # (request, n, snapshot): the state after n tokens, replayed ones counted, is kept there
    "tables": ("U", 1, 0),  # repeated (slot, group, first, count, block * count), applied before the copies
}


def offsets(
    tokens: int, rows: int, requests: int, copies: int, snapshots: int, table_words: int
) -> dict[str, tuple[int, int]]:
    """Field -> (begin, end) in int32 words; `end` of the last is the header's size."""
    sizes = {"T": tokens, "R": rows, "N": requests, "C": copies, "S": snapshots, "U": table_words}
    begin, where = NUM_SCALARS, {}
    for name, (symbol, a, b) in FIELDS.items():
        end = begin + a * sizes[symbol] + b
        where[name] = (begin, end)
        begin = end
    return where
