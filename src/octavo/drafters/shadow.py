"""Drafts as the target would sample them: its own sampler over a drafter's logits, with the noise, the penalties and
the truncation of the request. So where two distributions agree the tokens do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.drafters.likely import WIDE, in_order, likeliest
from octavo.drafters.port import DraftRow
from octavo.request import Request
from octavo.sampling.sampler import Sampler, SampleRow


class Shadows:
    """vocab_size: rows of the drafter's logits. ids: the target's tokens that they stand for, where they are not the
    same; penalties are left out then."""

    def __init__(self, vocab_size: int, threads: int, ids: Sequence[int] | None = None) -> None:
        self._ids = ids
        self._vocab_size = vocab_size
        self._sampler = Sampler(vocab_size, threads)
        self._shadows: dict[str, Request | None] = {}

    def follows(self, request: Request) -> bool:
        """Whether a token of the drafter's may come at all."""
        return self._shadow(request) is not None

    def choose(self, logits: Any, rows: Sequence[tuple[int, DraftRow, Sequence[int]]]) -> list[int | None]:
        """rows: (a row of the logits, whose they are, its drafts so far): what follows these. None where the logits are
        not finite."""
        if self._ids is not None:
            return self._likeliest(logits, rows, self._ids)
        asked: list[SampleRow] = []
        for place, row, drafts in rows:
            shadow, extra = self._shadow(row.request), (*row.result.token_ids, *drafts)
            if shadow is not None:
                asked.append(SampleRow(shadow, place, row.request.num_tokens + len(extra), extra))
        choices = zip(asked, self._sampler.sample(logits, asked), strict=True)
        found = {one.logits_row: choice.token_id for one, choice in choices if choice.finite}
        return [found.get(place) for place, _, _ in rows]

    @staticmethod
    def _likeliest(
        logits: Any, rows: Sequence[tuple[int, DraftRow, Sequence[int]]], ids: Sequence[int]
    ) -> list[int | None]:
        choices = likeliest(logits, [place for place, _, _ in rows], WIDE)
        found: list[int | None] = []
        for (_, row, drafts), best in zip(rows, choices, strict=True):
            index = row.request.num_tokens + len(row.result.token_ids) + len(drafts)
            ordered = in_order(best, row.request, index, ids)
            found.append(ordered[0][0] if ordered else None)
        return found

    def forget(self, request_id: str) -> None:
        self._shadows.pop(request_id, None)
        self._sampler.forget(request_id)

    def _shadow(self, request: Request) -> Request | None:
        if request.id not in self._shadows:
            self._shadows[request.id] = _shadow(request, self._vocab_size)
        return self._shadows[request.id]


def _shadow(request: Request, vocab_size: int) -> Request | None:
    """The request as far as a drafter's sampler can follow it: no mask, nothing of ids that the drafter has no logits
    for, nothing of what is only told."""
    params = request.params
    allowed = params.allowed_token_ids
    if allowed is not None and not (allowed := tuple(token for token in allowed if token < vocab_size)):
        return None
    plain = replace(
        params,
        logit_bias={token: bias for token, bias in params.logit_bias.items() if token < vocab_size},
        allowed_token_ids=allowed,
        stop_token_ids=tuple(token for token in params.stop_token_ids if token < vocab_size),
        structure=None,
        thinking_budget=None,
        logits_processor=None,
        logprobs=None,
        prompt_logprobs=None,
    )
    shadow = Request(
        request.id,
        request.prompt_ids,
        plain,
        seed=request.seed,
        eos_ids=request.eos_ids,
        bad_word_ids=request.bad_word_ids,
    )
    shadow.output_ids = request.output_ids
    return shadow


def ends(request: Request, token: int) -> bool:
    return token in request.eos_ids and not request.params.ignore_eos
