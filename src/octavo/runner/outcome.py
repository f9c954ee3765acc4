"""Logits of a step -> RowResults: what is sampled, which drafts it confirms, the log-probabilities of prompts.

One native call samples every row of the step; another scores prompt tokens where someone asked. An offset is a place in
a row's token_ids; its logits say what comes at index start + offset + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numpy import isfinite

from octavo.request import Request, Row, RowResult, TokenLogprobs
from octavo.sampling.sampler import Sampled, Sampler, SampleRow
from octavo.sampling.spot import judge
from octavo.sampling.verify import Verified, nodes, verify

_NOTHING = RowResult()
_NOT_FINITE = RowResult(finite=False)


def sample(sampler: Sampler, logits: Any, rows: Sequence[Row], requests: Sequence[Request | None]) -> list[RowResult]:
    """logits: float32 [R, V], the rows' logits one after the other. A row without a request yields nothing."""
    wanted: list[SampleRow] = []
    targets: list[tuple[int, int, int]] = []
    judged: dict[int, Verified] = {}  # rows whose drafts are accepted by another rule than equality
    first = 0
    for number, (row, request) in enumerate(zip(rows, requests, strict=True)):
        tokens = len(row.token_ids)
        after = first + tokens - row.logits_from
        if request is not None:
            if row.sample and row.num_drafts and sampler.judges(request):
                judged[number] = judge(sampler, logits, row, request, first)
            elif row.sample and row.num_drafts:
                wanted += _draft_rows(row, request, first)
            elif row.sample:
                wanted.append(SampleRow(request, after - 1, row.start + tokens))
            if request.params.prompt_logprobs is not None:
                targets += _prompt_targets(row, request, first)
        first = after
    sampled = iter(sampler.sample(logits, wanted))
    scored = iter(sampler.prompt_logprobs(logits, targets))
    results: list[RowResult] = []
    for number, (row, request) in enumerate(zip(rows, requests, strict=True)):
        if request is None:
            results.append(_NOTHING)
        elif row.num_drafts or not row.sample or request.params.prompt_logprobs is not None:
            results.append(_result(row, request, sampled, scored, judged.get(number)))
        else:
            results.append(_chosen(next(sampled)))
    return results


def embeddings(vectors: Any, rows: Sequence[Row], requests: Sequence[Request | None]) -> list[RowResult]:
    """vectors: float32 [N, D], one a row. A row that does not end its prompt yields nothing."""
    results: list[RowResult] = []
    for vector, row, request in zip(vectors, rows, requests, strict=True):
        if request is None or row.start + len(row.token_ids) < request.num_tokens:
            results.append(_NOTHING)
        else:
            results.append(RowResult(embedding=vector.tobytes()) if isfinite(vector).all() else _NOT_FINITE)
    return results


def decoded(token_ids: tuple[int, ...]) -> tuple[RowResult | int, ...]:
    """What a cohort's call gave, -1 for a row that is not finite, as results of the step."""
    if -1 not in token_ids:
        return token_ids
    return tuple(_NOT_FINITE if token < 0 else token for token in token_ids)


def tokens(result: RowResult | int) -> tuple[int, ...]:
    """That it appends; none of a row that is not finite."""
    return (result,) if isinstance(result, int) else result.token_ids


def brief(result: RowResult | int) -> RowResult | int:
    """The token alone where nothing else is to be said: the scheduler has a short way for that."""
    if isinstance(result, int):
        return result
    more = result.draft_ids or result.accepted or result.logprobs or result.prompt_logprobs
    return result.token_ids[0] if len(result.token_ids) == 1 and result.finite and not more else result


def _chosen(choice: Sampled) -> RowResult:
    """A row without drafts and prompt scores: nearly all of them."""
    if not choice.finite:
        return RowResult(finite=False, error=choice.error)
    if choice.logprobs is None:
        return RowResult((choice.token_id,))
    return RowResult((choice.token_id,), (), (choice.logprobs,))


def _draft_rows(row: Row, request: Request, first: int) -> list[SampleRow]:
    """One per token to choose: after the last known token and after each draft. `first`: the row's first logits row."""
    return [
        SampleRow(request, first + node.offset - row.logits_from, node.index, node.extra_ids) for node in nodes(row)
    ]


def _prompt_targets(row: Row, request: Request, first: int) -> list[tuple[int, int, int]]:
    """(logits row, the prompt token that follows, how many of the likeliest) for the prompt rows of this step."""
    top = request.params.prompt_logprobs or 0
    begin = row.start + row.logits_from + 1
    end = min(row.start + len(row.token_ids) + 1, len(request.prompt_ids))
    return [(first + i - begin, request.prompt_ids[i], top) for i in range(begin, end)]


def _result(
    row: Row,
    request: Request,
    sampled: Iterator[Sampled],
    scored: Iterator[TokenLogprobs],
    verified: Verified | None,
) -> RowResult:
    """Takes the row's share of both native calls."""
    prompt: tuple[TokenLogprobs, ...] = ()
    if request.params.prompt_logprobs is not None:
        prompt = tuple(next(scored) for _ in _prompt_targets(row, request, 0))
    finite = all(position.entries for position in prompt)
    if not row.sample:
        return RowResult(prompt_logprobs=prompt) if finite else _NOT_FINITE
    verified = verified or verify(row, [next(sampled) for _ in range(row.num_drafts + 1)])
    if not finite or not verified.finite:
        return RowResult(finite=False, error=verified.sampled[-1].error)
    return RowResult(
        token_ids=verified.token_ids,
        accepted=verified.accepted,
        logprobs=tuple(choice.logprobs for choice in verified.sampled if choice.logprobs is not None),
        prompt_logprobs=prompt,
    )
