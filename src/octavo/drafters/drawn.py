"""Drafts that are drawn, for rules of acceptance that ask what from (sampling/rules.py): residual and block.

Several draws are made without replacement; all that were drawn are proposed, and how many there are depends on the
tokens before them alone. Their noise has a place (seed, index of the last known token, place) of its own: it has no
part in what the target draws.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log

from octavo.config import VerifyRule
from octavo.drafters.likely import Choice, in_order, truncated
from octavo.drafters.port import DraftRow, Proposal
from octavo.request import Request
from octavo.sampling.rules import Chances
from octavo.sampling.seeds import uniform

DRAW = 4  # place of the noise of draws among a request's numbers


@dataclass(frozen=True, slots=True)
class Picked:
    """choices: in the order in which they are tried. chances: what they were drawn from; None where they were not."""

    choices: Sequence[Choice] = ()
    chances: Chances | None = None


@dataclass(slots=True)
class Chain:
    """Drafts of one request, each behind the one before."""

    tokens: list[int] = field(default_factory=list)
    chances: list[Chances | None] = field(default_factory=list)

    def add(self, picked: Picked) -> int:
        token = picked.choices[0][0]
        self.tokens.append(token)
        self.chances.append(picked.chances)
        return token

    def proposal(self) -> Proposal:
        drawn = any(chances is not None for chances in self.chances)
        return Proposal(tuple(self.tokens), (), tuple(self.chances) if drawn else ())


class Draws:
    """rule: by which drafts are accepted."""

    def __init__(self, rule: VerifyRule) -> None:
        self._asked = rule in ("residual", "block")

    def wanted(self, request: Request) -> bool:
        return self._asked and not request.params.greedy

    def pick(
        self, found: Sequence[Choice], row: DraftRow, depth: int, ids: Sequence[int], most: int, place: int = 0
    ) -> Picked:
        """The first `most` of what a head holds likely `depth` tokens behind the last known one. ids: the target's
        token of each of the head's. place: of this distribution among those of the step."""
        request, length = row.request, row.request.num_tokens + len(row.result.token_ids)
        if not self.wanted(request):
            return Picked(in_order(found, request, length + depth, ids, most))
        kept = truncated(found, request.params)
        return drawn([(ids[token], logprob) for token, logprob in kept], request, length - 1, place, most)


def drawn(choices: Sequence[Choice], request: Request, root: int, place: int, most: int = 1) -> Picked:
    """Draws from the choices as they are to each other. root: index of the last known token."""
    top = max((logprob for _, logprob in choices), default=0.0)
    masses = {token: mass for token, logprob in choices if (mass := exp(logprob - top)) > 0}
    whole = sum(masses.values())
    chances = {token: mass / whole for token, mass in masses.items()}
    left, found = dict(masses), []
    for draw in range(min(most, len(left))):
        token = _at(left, uniform(request.seed, root, place, DRAW, draw))
        left.pop(token)
        found.append((token, log(chances[token])))
    return Picked(found, chances)


def _at(masses: Mapping[int, float], share: float) -> int:
    """The token where so much of all mass lies before."""
    sums = list(accumulate(masses.values()))
    return list(masses)[min(bisect_right(sums, share * sums[-1]), len(sums) - 1)]
