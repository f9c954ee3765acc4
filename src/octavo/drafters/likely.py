"""What a head holds likely: the first tokens of rows of its logits, in the order in which the target may choose them.

The search is native. A request that samples has its noise added to what the head says: the target adds the same noise
to its own logits, so that the head's first token is the target's choice about as often as the two distributions
overlap. Nothing here reaches a text: the target samples every token itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from operator import itemgetter
from typing import Any

from octavo import _native
from octavo.request import Request, SamplingParams

Choice = tuple[int, float]  # token, log-probability
WIDE = 50  # tokens of which the probabilities of a row are made where it samples; the others count as impossible


def width(requests: Iterable[Request], chosen: int) -> int:
    """Tokens to look for, of which `chosen` are taken: noise may lift others, where there is any."""
    return chosen if all(request.params.greedy for request in requests) else WIDE


def likeliest(logits: Any, rows: Sequence[int], count: int) -> list[list[Choice]]:
    """Per row the first `count` tokens, the likeliest first. logits: DraftSession.logits. A row that is not finite has
    none."""
    found = _native.prompt_logprobs(logits, [(row, 0, count) for row in rows], -1, 1)
    return [[(token, logprob) for token, logprob, _ in entries[1:]] for entries in found]


def in_order(
    choices: Sequence[Choice], request: Request, index: int, ids: Sequence[int], most: int = WIDE
) -> list[Choice]:
    """As the request would choose for the token at `index`: the first `most`, with log-probabilities, of a request that
    samples among all that are given. ids: the target's token of each of the head's."""
    params = request.params
    if params.greedy:
        return [(ids[token], logprob) for token, logprob in choices[:most]]
    seed = request.seed % (1 << 64)
    kept = [(ids[token], logprob) for token, logprob in truncated(choices, params)]
    noisy = [(token, logprob + _native.gumbel_noise(seed, index, token, 0)) for token, logprob in kept]
    total = _total(noisy)
    noisy.sort(key=itemgetter(1), reverse=True)
    return [(token, logprob - total) for token, logprob in noisy[:most]]


def truncated(choices: Sequence[Choice], params: SamplingParams) -> Sequence[Choice]:
    """By temperature, min-p, top-k and top-p, each of what is left."""
    kept = choices
    if params.temperature != 1.0:
        kept = [(token, logprob / params.temperature) for token, logprob in choices]
    if params.min_p and kept:
        least = kept[0][1] + log(params.min_p)
        kept = [choice for choice in kept if choice[1] >= least]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p >= 1.0:
        return kept
    wanted, mass, count = exp(_total(kept)) * params.top_p, 0.0, 0
    while count < len(kept) and mass < wanted:
        mass += exp(kept[count][1])
        count += 1
    return kept[:count]


def _total(choices: Sequence[Choice]) -> float:
    """The logarithm of the sum of what the log-probabilities stand for."""
    if not choices:
        return 0.0
    most = max(logprob for _, logprob in choices)
    return most + log(sum([exp(logprob - most) for _, logprob in choices]))
