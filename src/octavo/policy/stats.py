"""PolicyStats: what the scheduler counts, as plain data. Counters only rise; gauges are read off the scheduler."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class PolicyStats:
    """lookups, hits, full_hits: admissions, those with a cached prefix, those with the last token alone to compute.
    chunks: rows that did not reach the last known token. deferred: times that a waiting request waited for another's
    block. stalls: times that a running request found no block. aborts: by state when it came. finished: by reason."""

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
    copies: int = 0
    late_results: int = 0
    aborts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("waiting", "preempted", "running", "in_flight"), 0)
    )
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
