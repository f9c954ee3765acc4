"""Who may wait for the engine, and when the others should come back.

A request waits from its arrival until its first output; the backlog is all that wait, counted in sequences and in
prompt tokens. What exceeds a limit is refused with 429 and the time that the backlog takes at the measured rate. No key
can close the door to others: while several have requests waiting, a key below its even share of a limit is let in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError

MAX_RETRY = 60  # seconds
MEMORY = 30.0  # seconds of waiting over which the rate is measured; older ones count ever less
CERTAIN = 5.0  # seconds of waiting before a limit is made of the rate
LEAST_TOKENS = 16384  # such a limit is never lower


class Rate:
    """Prompt tokens and sequences that left the backlog for the engine, per second in which anything waited."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._tokens = 0.0
        self._sequences = 0.0

    def waited(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds > MEMORY:
            kept = MEMORY / self.seconds
            self.seconds, self._tokens, self._sequences = MEMORY, self._tokens * kept, self._sequences * kept

    def served(self, tokens: int, sequences: int) -> None:
        self._tokens += tokens
        self._sequences += sequences

    @property
    def tokens(self) -> float:
        return self._tokens / self.seconds if self.seconds else 0.0

    @property
    def sequences(self) -> float:
        return self._sequences / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Share:
    """What one key has here: requests that are open, and of them sequences and prompt tokens that wait."""

    requests: int = 0
    sequences: int = 0
    tokens: int = 0


class Admission:
    """One for all engines of a server. clock: seconds, any origin."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._shares: dict[str, Share] = {}
        self._looked = clock()
        self.rate = Rate()
        self.sequences = 0
        self.tokens = 0
        self.refused = 0  # since start

    @property
    def requests(self) -> int:
        """Requests that are open, waiting or not."""
        return sum(share.requests for share in self._shares.values())

    def arrive(self, tenant: str) -> Ticket:
        """A request, of which nothing is read. Raises HttpError (429)."""
        share = self._shares.setdefault(tenant, Share())
        ticket = Ticket(self, tenant)
        most = self._config.max_key_requests
        share.requests += 1
        try:
            if most is not None and share.requests > most:
                raise self._refusal(f"this key may have {most} requests open")
            self.weigh(ticket, 1, 0)
        except HttpError:
            self.close(ticket)
            raise
        return ticket

    def weigh(self, ticket: Ticket, sequences: int, tokens: int) -> None:
        """What a waiting request asks for. One that finds nobody else waiting is let in. Raises HttpError (429)."""
        share = self._shares[ticket.tenant]
        keys = sum(other.sequences > 0 for other in self._shares.values() if other is not share) + 1

        def exceeds(most: int, others: int, own: int, wanted: int) -> bool:
            return others > 0 and others + wanted > most and own + wanted > max(most // keys, 1)

        most, most_tokens = self._config.max_queued_requests, self.max_tokens
        others, own = self.sequences - ticket.sequences, share.sequences - ticket.sequences
        if exceeds(most, others, own, sequences):
            raise self._refusal(f"{others} sequences wait, of at most {most}")
        others, own = self.tokens - ticket.tokens, share.tokens - ticket.tokens
        if most_tokens is not None and tokens and exceeds(most_tokens, others, own, tokens):
            raise self._refusal(f"{others} prompt tokens wait, and {tokens} more exceed {most_tokens}")
        self._add(share, sequences - ticket.sequences, tokens - ticket.tokens)
        ticket.sequences, ticket.tokens = sequences, tokens

    def depart(self, ticket: Ticket, *, served: bool) -> None:
        """The request waits no longer: its output has begun, or it has ended."""
        self._add(self._shares[ticket.tenant], -ticket.sequences, -ticket.tokens)
        if served:
            self.rate.served(ticket.tokens, ticket.sequences)

    def close(self, ticket: Ticket) -> None:
        share = self._shares[ticket.tenant]
        share.requests -= 1
        if not share.requests:
            del self._shares[ticket.tenant]

    @property
    def max_tokens(self) -> int | None:
        """Prompt tokens that may wait: as told, or what the measured rate computes in the longest wait."""
        if self._config.max_queued_tokens is not None:
            return self._config.max_queued_tokens
        if self.rate.seconds < CERTAIN:
            return None
        return max(LEAST_TOKENS, int(self.rate.tokens * self._config.queue_seconds))

    def retry_after(self) -> int:
        """Seconds until what waits now has begun."""
        waits = [
            waiting / rate
            for waiting, rate in ((self.tokens, self.rate.tokens), (self.sequences, self.rate.sequences))
            if rate
        ]
        return min(max(math.ceil(max(waits, default=1.0)), 1), MAX_RETRY)

    # ---- inside
    def _add(self, share: Share, sequences: int, tokens: int) -> None:
        now = self._clock()
        if self.sequences:
            self.rate.waited(now - self._looked)
        self._looked = now
        share.sequences += sequences
        share.tokens += tokens
        self.sequences += sequences
        self.tokens += tokens

    def _refusal(self, reason: str) -> HttpError:
        self.refused += 1
        after = self.retry_after()
        return HttpError(429, "overloaded", f"too many requests: {reason}; try again in {after} s", retry_after=after)


class Ticket:
    """One request's place. A context: leaving it, however that happens, gives the place back."""

    __slots__ = ("_admission", "_waits", "sequences", "tenant", "tokens")

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission = admission
        self._waits = True
        self.tenant = tenant
        self.sequences = 0
        self.tokens = 0

    def weigh(self, sequences: int, tokens: int) -> None:
        """Before it goes to the engine. Raises HttpError (429)."""
        if self._waits:
            self._admission.weigh(self, sequences, tokens)

    def begun(self) -> None:
        """Its first output is there."""
        if self._waits:
            self._waits = False
            self._admission.depart(self, served=True)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._waits:
            self._waits = False
            self._admission.depart(self, served=False)
        self._admission.close(self)
