"""How far one executor's logits stand from another's on real text, and the perplexity of both.

Text is cut into windows of 2 * context tokens; the second half of each is scored, so that every scored token has at
least `context` tokens before it. Teacher-forced: no sampling. Statistics are over windows, which are nearly
independent where tokens are not; bounds are one-sided at 95 %.

numpy computes here: these are measurements, no value reaches a token. W windows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.config import EngineConfig
from octavo.drafters.null import no_drafter
from octavo.errors import RequestError
from octavo.request import Row, StepPlan, TableUpdate
from octavo.runner.runner import LOGITS, Runner

T95 = 1.645  # one-sided
Progress = Callable[[int, int], None]
Logits = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Sums over the scored tokens of one window. nll in nats; kl from the other executor to this one."""

    tokens: int
    nll: float
    other_nll: float = 0.0
    kl: float = 0.0
    agree: int = 0


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Means over all tokens, each with the far end of its 95 % bound."""

    tokens: int
    perplexity: float
    other_perplexity: float
    kl: float
    kl_bound: float
    top1: float
    top1_bound: float
    perplexity_shift: float  # |ratio - 1|
    perplexity_shift_bound: float


class Scorer:
    """One executor, opened for one request of 2 * context tokens."""

    def __init__(self, config: EngineConfig, context: int, progress: Progress) -> None:
        length = 2 * context
        blocks = -(-length // config.block_tokens)
        config = replace(config, max_num_seqs=1, max_model_len=length, num_blocks=blocks)
        self._runner = Runner.open(config, no_drafter, progress)
        self._groups = len(self._runner.loaded.groups)
        self._blocks = tuple(range(1, blocks + 1))
        self._chunk = min(config.max_num_batched_tokens, config.max_logit_rows)
        self._number = 0

    @property
    def numerics(self) -> str:
        return self._runner.loaded.numerics

    def logits(self, ids: Sequence[int], context: int) -> Iterator[Logits]:
        """Logits [rows, V] that predict ids[context:], in order; each array is valid until the next is asked for."""
        tables = tuple(TableUpdate(0, group, 0, self._blocks) for group in range(self._groups))
        for begin in range(0, len(ids) - 1, self._chunk):
            end = min(begin + self._chunk, len(ids) - 1)
            wanted = max(begin, context - 1)
            row = Row("window", 0, begin, tuple(ids[begin:end]), min(wanted, end) - begin, sample=False)
            self._runner.launch(StepPlan(self._number, (row,), tables=tables if begin == 0 else ()))
            self._number += 1
            if wanted < end:
                yield self._runner.view(LOGITS)
            self._runner.finish()

    def close(self) -> None:
        self._runner.close()


def windows(ids: Sequence[int], context: int, max_tokens: int | None = None) -> list[Sequence[int]]:
    """Windows of 2 * context tokens, half overlapping, so that each token after the first `context` is scored once."""
    found = [ids[i : i + 2 * context] for i in range(0, len(ids) - 2 * context + 1, context)]
    if not found:
        raise RequestError(f"the text has {len(ids)} tokens; a window takes {2 * context}: lower --window-context")
    return found if max_tokens is None else found[: max(1, -(-max_tokens // context))]


def score(
    one: Scorer, other: Scorer | None, cut: Sequence[Sequence[int]], context: int, progress: Progress
) -> list[WindowScore]:
    """Runs every window through `one`, and through `other` beside it when there is one."""
    scores = []
    for number, ids in enumerate(cut):
        targets = np.asarray(ids[context:])
        parts, done = [], 0
        others = other.logits(ids, context) if other else None
        for logits in one.logits(ids, context):
            want = targets[done : done + len(logits)]
            parts.append(_score(logits, None if others is None else next(others), want))
            done += len(logits)
        if others is not None:
            next(others, None)
        scores.append(_total(parts))
        progress(number + 1, len(cut))
    return scores


def summarize(scores: Sequence[WindowScore]) -> Fidelity:
    tokens = sum(score.tokens for score in scores)
    nll, other = sum(s.nll for s in scores), sum(s.other_nll for s in scores)
    kl, kl_error = _mean([s.kl / s.tokens for s in scores])
    top1, top1_error = _mean([s.agree / s.tokens for s in scores])
    shift, shift_error = _mean([(s.nll - s.other_nll) / s.tokens for s in scores])
    return Fidelity(
        tokens=tokens,
        perplexity=math.exp(nll / tokens),
        other_perplexity=math.exp(other / tokens),
        kl=kl,
        kl_bound=kl + T95 * kl_error,
        top1=top1,
        top1_bound=top1 - T95 * top1_error,
        perplexity_shift=abs(math.expm1(shift)),
        perplexity_shift_bound=math.expm1(abs(shift) + T95 * shift_error),
    )


def _score(logits: Logits, others: Logits | None, targets: Any) -> WindowScore:
    logs = _log_softmax(logits)
    rows = np.arange(len(targets))
    nll = -float(logs[rows, targets].sum())
    if others is None:
        return WindowScore(len(targets), nll)
    truth = _log_softmax(others)
    kl = float((np.exp(truth) * (truth - logs)).sum(dtype=np.float64))
    agree = int((logits.argmax(1) == others.argmax(1)).sum())
    return WindowScore(len(targets), nll, -float(truth[rows, targets].sum()), kl, agree)


def _log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max(1, keepdims=True)
    total = np.exp(shifted).sum(1, keepdims=True, dtype=np.float64)
    shifted -= np.log(total).astype(np.float32)
    return shifted


def _total(parts: Sequence[WindowScore]) -> WindowScore:
    return WindowScore(
        sum(p.tokens for p in parts),
        sum(p.nll for p in parts),
        sum(p.other_nll for p in parts),
        sum(p.kl for p in parts),
        sum(p.agree for p in parts),
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """(mean, standard error)."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.inf
    spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))
