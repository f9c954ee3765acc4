"""How likely each of some labels is as the answer to a prompt: prefill alone, the prompt computed once for all.

A label's tokens stand behind the prompt and are scored there; rows before them come from the prefix cache. Where one
label's tokens begin another's, the shorter has what the longer ones leave: its own is the probability that the answer
begins with it and does not go on as one of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import RequestError
from octavo.request import SamplingParams
from octavo.server.call import Call, Choice, Prompt
from octavo.server.openai.decisions.questions import Likely

AT_ONCE = 64  # labels in the engine


@dataclass(frozen=True, slots=True)
class Ballot:
    """One question's prompt, and the tokens of each label."""

    prompt: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Spent:
    """Tokens: of prompts, each counted once; of them, those that the cache gave; of labels."""

    prompt: int = 0
    cached: int = 0
    labels: int = 0


class Scoring:
    """Ballots of one request."""

    def __init__(self, call: Call, cache_key: str) -> None:
        self._call = call
        self._cache_key = cache_key
        self.spent = Spent()

    async def of(self, ballots: Sequence[Ballot]) -> list[list[Likely]]:
        """Raises HttpError (429), ContextLengthError, CapacityError, EngineError."""
        wanted = [(ballot, label) for ballot in ballots for label in ballot.labels]
        params = [self._params(ballot, label) for ballot, label in wanted]
        tokens = sum(len(ballot.prompt) + sum(map(len, ballot.labels)) for ballot in ballots)
        scores: list[float] = []
        for start in range(0, len(wanted), AT_ONCE):
            part = wanted[start : start + AT_ONCE]
            prompts = [Prompt((*ballot.prompt, *label)) for ballot, label in part]
            own = params[start : start + AT_ONCE]
            generation = self._call.generation(prompts, own, cache_key=self._cache_key, tokens=tokens)
            async with generation.running() as outputs:
                choices = await outputs.finished()
            scores += [_score(choice, label) for choice, (_, label) in zip(choices, part, strict=True)]
            self._count(choices, part)
        taken = iter(scores)
        return [likely(ballot.labels, [next(taken) for _ in ballot.labels]) for ballot in ballots]

    def _params(self, ballot: Ballot, label: tuple[int, ...]) -> SamplingParams:
        first = len(ballot.prompt)
        if not label:
            raise RequestError("questions: a label without a token", param="questions")
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=first)
        return self._call.fit(params, first + len(label), 0)

    def _count(self, choices: Sequence[Choice], part: Sequence[tuple[Ballot, tuple[int, ...]]]) -> None:
        for choice, (ballot, label) in zip(choices, part, strict=True):
            self.spent.labels += len(label)
            if label is ballot.labels[0]:
                self.spent.prompt += len(ballot.prompt)
                self.spent.cached += min(choice.cached_tokens, len(ballot.prompt))


def _score(choice: Choice, label: Sequence[int]) -> float:
    """The sum over the label's tokens, the last ones of the prompt."""
    positions = (choice.prompt_logprobs or ())[-len(label) :]
    return math.fsum(position[token].logprob for position, token in zip(positions, label, strict=True) if position)


def likely(labels: Sequence[tuple[int, ...]], scores: Sequence[float]) -> list[Likely]:
    """scores: log-probabilities of the labels' tokens; Likely among each other."""
    own = [_own(place, labels, scores) for place in range(len(labels))]
    top = max(own)
    if top == -math.inf:
        return [Likely(1 / len(own), score) for score in own]
    total = math.fsum(math.exp(score - top) for score in own)
    return [Likely(math.exp(score - top) / total, score) for score in own]


def _own(place: int, labels: Sequence[tuple[int, ...]], scores: Sequence[float]) -> float:
    """Without what the nearest longer labels have, which have what is longer still."""
    label = labels[place]
    longer = [other for other in range(len(labels)) if other != place and labels[other][: len(label)] == label]
    nearest = [
        other
        for other in longer
        if not any(labels[other][: len(labels[between])] == labels[between] for between in longer if between != other)
    ]
    left = 1.0 - math.fsum(math.exp(scores[other] - scores[place]) for other in nearest)
    return scores[place] + math.log(left) if left > 0.0 else -math.inf
