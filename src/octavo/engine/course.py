"""How one output went: what its Transcript saw come, and when. Seconds of time.monotonic, 0.0 for what has not been."""

from __future__ import annotations

import time
from dataclasses import dataclass

from octavo.request import FinishReason, TokenDelta


@dataclass(frozen=True, slots=True)
class Drafts:
    """What became of drafts. proposed: that steps verified. steps: that verified any, of one output each."""

    proposed: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def length(self) -> float:
        """Acceptance length: tokens that a step with drafts gave, which are the drafts accepted and one more."""
        return 1 + self.accepted / self.steps if self.steps else 1.0

    def __add__(self, other: Drafts) -> Drafts:
        return Drafts(self.proposed + other.proposed, self.accepted + other.accepted, self.steps + other.steps)


NO_DRAFTS = Drafts()


@dataclass(slots=True, eq=False)
class Course:
    """begun: when its request was made. queued: seconds from there to its first step; prefill lies between that and
    `first`, when its first token came, decoding between `first` and `latest`. computed: tokens in the cache.

    longest_gap: seconds between two tokens that came after each other. mask_seconds: of the engine, for the masks of an
    output that has a form. preemptions and mask_seconds are told with the end alone.
    """

    index: int
    prompt_tokens: int
    seed: int
    begun: float
    queued: float = 0.0
    first: float = 0.0
    latest: float = 0.0
    longest_gap: float = 0.0
    computed: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafts: Drafts = NO_DRAFTS
    preemptions: int = 0
    mask_seconds: float = 0.0
    ended: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @classmethod
    def begin(cls, index: int, prompt_tokens: int, seed: int) -> Course:
        return cls(index, prompt_tokens, seed, time.monotonic())

    def take(self, delta: TokenDelta, kept: int) -> None:
        """kept: how many of the delta's tokens belong to the output."""
        if delta.computed > self.computed:
            self.computed = delta.computed
        if delta.cached_tokens > self.cached_tokens:
            self.cached_tokens = delta.cached_tokens
        if delta.drafted:
            self.drafts += Drafts(delta.drafted, delta.accepted, 1)
        if kept:
            now = time.monotonic()
            if self.latest:
                if now - self.latest > self.longest_gap:
                    self.longest_gap = now - self.latest
            else:
                self.first, self.queued = now, delta.queued
            self.latest = now
            self.output_tokens += kept
        if delta.finish_reason is not None:
            self.preemptions, self.mask_seconds = delta.preemptions, delta.mask_seconds

    def end(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """The first end counts."""
        if self.finish_reason is None:
            self.ended, self.finish_reason, self.stop_reason = time.monotonic(), reason, stop_reason
