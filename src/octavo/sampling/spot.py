"""What the target says after one token of a step, for rules that ask for chances (rules.py): out of its logits, by the
sampler's own calls, so that penalties, bans, masks and truncations are those of plain decoding.

Noise is a function of (seed, index of the step's last known token, place): of a step that is made once, and never of
who shares it. Plain choices have the noise that they always have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.request import Request, Row, TokenLogprobs
from octavo.sampling.rules import RULES, Chances, Tree
from octavo.sampling.sampler import Sampled, Sampler, SampleRow
from octavo.sampling.seeds import uniform
from octavo.sampling.verify import Node, Verified, nodes

LISTED, WIDER = 64, 16  # likeliest tokens that are listed at first; how many times more, whenever that is too few
DRAWS, ROOTS = 16, 1 << 27  # noise of its own for so many further draws of a step, so many steps of a request
FURTHER = 1 << 31  # indices from here on are of no token


class NotFiniteError(Exception):
    """Its message says more, where more is known."""


class NativeSpot:
    """row: of `logits`, float32 [R, V]. root: index of the step's last known token. node: of the tree of drafts."""

    def __init__(self, sampler: Sampler, logits: Any, row: SampleRow, root: int, node: int) -> None:
        self._sampler = sampler
        self._logits = logits
        self._row = row
        self._root = root
        self._node = node
        self._encoded = sampler.encode(row)
        self._asked = 0  # numbers
        self._top = LISTED
        self._list()

    def _list(self) -> None:
        token, finite, entries = self._sampler.listed(self._logits, self._encoded, self._top)
        if not finite:
            raise NotFiniteError(self._sampler.failure(self._row.request))
        self.choice: int = token
        self._entries: Sequence[tuple[int, float, int]] = entries[1:]
        self._chances = {token: math.exp(logprob) for token, logprob, _ in self._entries}

    @property
    def _complete(self) -> bool:
        return len(self._entries) < self._top or self._top >= self._sampler.vocab_size

    def chance(self, token: int, least: float = 0.0) -> float:
        while True:
            found = self._chances.get(token)
            if found is not None:
                return found
            if self._complete or math.exp(self._entries[-1][1]) <= least:
                return 0.0
            self._widen()

    def _widen(self) -> None:
        self._top = min(self._top * WIDER, self._sampler.vocab_size)
        self._list()

    def apart(self, tokens: Chances) -> int:
        """Some draws; should all of them be among the tokens, one from the list of everything else."""
        first = FURTHER + self._root % ROOTS * DRAWS
        for draw in range(DRAWS):
            token, _, _ = self._sampler.listed(self._logits, self._encoded, -1, index=first + draw)
            if token not in tokens:
                return token
        while not self._complete:
            self._widen()
        others = {token: chance for token, chance in self._chances.items() if token not in tokens}
        at = self.uniform() * sum(others.values())
        for token, chance in others.items():
            if at < chance:
                return token
            at -= chance
        return next(iter(others), self.choice)

    def uniform(self) -> float:
        self._asked += 1
        return uniform(self._row.request.seed, self._root, self._node, self._asked)

    def entropy(self) -> float:
        """Of the model's own distribution at the request's temperature, as Medusa's code has it, 1e-5 included."""
        scaled = self._logits[self._row.logits_row].astype(np.float64) / self._row.request.params.temperature
        p = np.exp(scaled - scaled.max())
        p /= p.sum()
        return float(-(p * np.log(p + 1e-5)).sum())

    def told(self, token: int) -> Sampled:
        """As if plain decoding had chosen it."""
        params = self._row.request.params
        if params.logprobs is None:
            return Sampled(token, None, True)
        if params.logprobs_mode == "raw":
            wanted = (self._row.logits_row, token, params.logprobs)
            return Sampled(token, self._sampler.prompt_logprobs(self._logits, [wanted])[0], True)
        self.chance(token)
        own = next(entry for entry in self._entries if entry[0] == token)
        return Sampled(token, TokenLogprobs((own, *self._entries[: params.logprobs])), True)


def judge(sampler: Sampler, logits: Any, row: Row, request: Request, first: int) -> Verified:
    """Verifies the drafts of a row by the sampler's rule. first: the row's first row of logits."""
    places = nodes(row)
    known = len(row.token_ids) - row.num_drafts
    drawn = sampler.drawn_from(request.id, row.token_ids[known:])
    parents = tuple(parent - known + 1 for parent in row.parents) or tuple(range(row.num_drafts))
    spots: dict[int, NativeSpot] = {}

    def at(node: int) -> NativeSpot:
        if node not in spots:
            place: Node = places[node]
            logits_row = first + place.offset - row.logits_from
            wanted = SampleRow(request, logits_row, place.index, place.extra_ids)
            spots[node] = NativeSpot(sampler, logits, wanted, row.start + known - 1, node)
        return spots[node]

    try:
        verdict = RULES[sampler.rule](Tree(row.token_ids[known:], parents, drawn), at)
        path = (0, *verdict.path)
        tokens = [row.token_ids[known + node - 1] for node in verdict.path] + [verdict.token]
        sampled = tuple(at(node).told(token) for node, token in zip(path, tokens, strict=True))
    except NotFiniteError as error:
        return Verified((), (Sampled(-1, None, False, str(error)),))
    return Verified(tuple(known + node - 1 for node in verdict.path), sampled)
