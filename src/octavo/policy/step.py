"""What a plan is made of while it is made: its limits, the budgets left, the scheduler's record of a request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from octavo.policy.kv import Holding
from octavo.request import KVCopy, Request, Row, StateStep, TableUpdate


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """plans_outstanding: how many plans may be made before the first of them is committed."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_logit_rows: int
    max_model_len: int
    plans_outstanding: int = 1


class Entry:
    """The scheduler's own record of a request, from add to the last commit.

    rank: seniority among running requests, smallest first. outstanding: plans that name it. copies, copies_end:
    accepted tree tokens still to be moved, as (source, target), and the index behind the last source. delivered: prompt
    rows whose logits were returned, if any are needed. enders: tokens that may end it. next: the row that decode.py
    prepared.
    """

    __slots__ = (
        "copies",
        "copies_end",
        "delivered",
        "enders",
        "holding",
        "next",
        "order",
        "outstanding",
        "rank",
        "request",
    )

    rank: tuple[int, int, int]  # set at each admission
    holding: Holding  # the ledger's, set at each admission

    def __init__(self, request: Request, order: int) -> None:
        self.request = request
        self.order = order
        self.outstanding = 0
        self.copies: list[tuple[int, int]] = []
        self.copies_end = 0
        self.delivered = 0
        self.next: Row | None = None
        self.enders = _enders(request.params.stop_token_ids, () if request.params.ignore_eos else request.eos_ids)


class Step:
    """A plan in the making and what is left of its budgets."""

    __slots__ = ("copies", "entries", "logits", "rows", "states", "tables", "tokens")

    def __init__(self, limits: SchedulerLimits) -> None:
        self.tokens = limits.max_num_batched_tokens
        self.logits = limits.max_logit_rows
        self.rows: list[Row] = []
        self.entries: list[Entry] = []  # one a row
        self.copies: list[KVCopy] = []
        self.tables: list[TableUpdate] = []
        self.states: list[StateStep] = []


@lru_cache(maxsize=256)
def _enders(stop_ids: tuple[int, ...], eos_ids: tuple[int, ...]) -> frozenset[int]:
    """One set for all requests that end alike."""
    return frozenset(stop_ids + eos_ids)
