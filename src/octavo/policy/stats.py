"""PolicyStats: what the scheduler counts, as plain data. Counters only rise; gauges are read off the scheduler."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class PolicyStats:
    """lookups, hits, full_hits: admissions, those with a cached prefix, those with the last token alone to compute.
    chunks: rows that did not reach the last known token. deferred: times that a waiting request waited for another's
    block. stalls: times that a running request found no block. draft_steps: sampled rows that verified drafts;
    accepted_at: how many of them accepted a draft at depth 1, 2, ... aborts: by state when it came. finished: by
    reason."""

    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    lookups: int = 0
    hits: int = 0
    full_hits: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    chunks: int = 0
    deferred: int = 0
    stalls: int = 0
    drafts_accepted: int = 0
    drafts_rejected: int = 0
    drafts_dropped: int = 0
    draft_steps: int = 0
    accepted_at: list[int] = field(default_factory=list)
    copies: int = 0
    late_results: int = 0
    aborts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("waiting", "preempted", "running", "in_flight"), 0)
    )
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))

    def verified(self, drafts: int, accepted: int) -> None:
        """A row sampled, and verified so many drafts, which may be none."""
        if not drafts:
            return
        self.draft_steps += 1
        self.drafts_accepted += accepted
        self.drafts_rejected += drafts - accepted
        self.accepted_at += [0] * (accepted - len(self.accepted_at))
        for depth in range(accepted):
            self.accepted_at[depth] += 1

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
