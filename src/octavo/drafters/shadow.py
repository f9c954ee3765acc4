"""Drafts as the target would sample them: its own sampler over a drafter's logits, with the noise, the penalties and
the truncation of the request. So where two distributions agree the tokens do. Rules that ask what drafts were drawn
from have them drawn, of the likeliest tokens of the same distribution (drawn.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.config import VerifyRule
from octavo.drafters.drawn import Draws, Picked, drawn
from octavo.drafters.likely import WIDE, likeliest
from octavo.drafters.port import DraftRow
from octavo.request import Request
from octavo.sampling.sampler import Sampler, SampleRow


class Shadows:
    """vocab_size: rows of the drafter's logits; tokens: those of the target. ids: the target's tokens that they stand
    for, where they are not the same; penalties are left out then. rule: by which drafts are accepted."""

    def __init__(
        self, vocab_size: int, tokens: int, threads: int, rule: VerifyRule, ids: Sequence[int] | None = None
    ) -> None:
        self._ids = ids
        self._vocab_size, self._tokens = vocab_size, tokens
        self._draws = Draws(rule)
        self._sampler = Sampler(vocab_size, threads)
        self._shadows: dict[str, Request | None] = {}

    def follows(self, request: Request) -> bool:
        """Whether a token of the drafter's may come at all."""
        return self._shadow(request) is not None

    def choose(self, logits: Any, rows: Sequence[tuple[int, DraftRow, Sequence[int]]]) -> list[Picked | None]:
        """rows: (a row of the logits, whose they are, its drafts so far): what follows these, one choice. None where
        the logits are not finite."""
        if self._ids is not None:
            return self._likeliest(logits, rows, self._ids)
        asked: list[SampleRow] = []
        found: dict[int, Picked | None] = {}
        for place, row, drafts in rows:
            shadow, extra = self._shadow(row.request), (*row.result.token_ids, *drafts)
            if shadow is None:
                continue
            one = SampleRow(shadow, place, row.request.num_tokens + len(extra), extra)
            if self._draws.wanted(row.request):
                found[place] = self._drawn(logits, one, len(drafts))
            else:
                asked.append(one)
        for one, choice in zip(asked, self._sampler.sample(logits, asked), strict=True):
            found[one.logits_row] = Picked([(choice.token_id, 0.0)]) if choice.finite else None
        return [found.get(place) for place, _, _ in rows]

    def _drawn(self, logits: Any, row: SampleRow, place: int) -> Picked | None:
        """Ids that only the drafter has rows for stand in no text, and are not drawn."""
        _, finite, entries = self._sampler.listed(logits, self._sampler.encode(row), WIDE)
        choices = [(token, logprob) for token, logprob, _ in entries[1:] if token < self._tokens]
        return drawn(choices, row.request, row.index - 1 - place, place) if finite and choices else None

    def _likeliest(
        self, logits: Any, rows: Sequence[tuple[int, DraftRow, Sequence[int]]], ids: Sequence[int]
    ) -> list[Picked | None]:
        best = likeliest(logits, [place for place, _, _ in rows], WIDE)
        picked = (
            self._draws.pick(choices, row, len(drafts), ids, 1, len(drafts))
            for (_, row, drafts), choices in zip(rows, best, strict=True)
        )
        return [one if one.choices else None for one in picked]

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
