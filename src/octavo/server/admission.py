"""Who may wait for the engine, and when the others should come back.

A request waits from its arrival until its first output; the backlog is all that wait, counted in sequences and in
prompt tokens. What exceeds a limit is refused with 429 and the time that the backlog takes at the measured rate. No key
can close the door to others: while several have requests waiting, a key below its even share of a limit is let in.
A key may have limits of its own: what it has open, what of it waits, what it spends in a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from octavo.server.bucket import Bucket
from octavo.server.config import ServerConfig
from octavo.server.failures import HttpError
from octavo.server.keys import KeyLimits

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


class Account:
    """The limits of one key, and what is left of those of a minute."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        per_minute = limits.requests_per_minute, limits.tokens_per_minute
        self.requests, self.tokens = (None if most is None else Bucket(most, clock) for most in per_minute)

    def wait(self) -> int:
        """Seconds until it may ask again, 0 for now: a request is there, and tokens have not been overspent."""
        requests = 0 if self.requests is None else self.requests.wait(1)
        return max(requests, 0 if self.tokens is None else self.tokens.wait(1))

    def asked(self) -> None:
        if self.requests is not None:
            self.requests.take(1)

    def spent(self, tokens: int) -> None:
        if self.tokens is not None:
            self.tokens.take(tokens)


class Admission:
    """One for all engines of a server. clock: seconds, any origin."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._shares: dict[str, Share] = {}
        self._accounts: dict[str, Account] = {}
        self._looked = clock()
        self.rate = Rate()
        self.sequences = 0
        self.tokens = 0
        self.refused = 0  # since start

    @property
    def requests(self) -> int:
        """Requests that are open, waiting or not."""
        return sum(share.requests for share in self._shares.values())

    def arrive(self, tenant: str, *, goes_on: bool = False) -> Ticket:
        """A request, of which nothing is read, or one that goes on beyond its answer. Raises HttpError (429)."""
        share = self._shares.setdefault(tenant, Share())
        ticket, account = Ticket(self, tenant), self.account(tenant)
        most = account.limits.max_requests
        share.requests += 1
        try:
            if most is not None and share.requests > most:
                raise self._refusal(f"this key may have {most} requests open", "rate_limit_exceeded")
            if not goes_on and (seconds := account.wait()) > 0:
                raise self._refusal("this key has spent what it may in a minute", "rate_limit_exceeded", seconds)
            self.weigh(ticket, 1, 0)
        except HttpError:
            self.close(ticket)
            raise
        if not goes_on:
            account.asked()
        return ticket

    def account(self, tenant: str) -> Account:
        """Names of tenants are the server's own, and so few."""
        if tenant not in self._accounts:
            self._accounts[tenant] = Account(self._config.limits(tenant), self._clock)
        return self._accounts[tenant]

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
        most_own = self.account(ticket.tenant).limits.max_queued_tokens
        if most_own is not None and own > 0 and own + tokens > most_own:
            reason = f"{own} prompt tokens of this key wait, and {tokens} more exceed {most_own}"
            raise self._refusal(reason, "rate_limit_exceeded")
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
        return max(LEAST_TOKENS, int(self.rate.tokens * self._config.backlog_seconds))

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

    def _refusal(self, reason: str, code: str = "overloaded", after: int | None = None) -> HttpError:
        self.refused += 1
        after = after or self.retry_after()
        return HttpError(429, code, f"too many requests: {reason}; try again in {after} s", retry_after=after)


class Ticket:
    """One request's place. A context: leaving it, however that happens, gives the place back."""

    __slots__ = ("_account", "_admission", "sequences", "tenant", "tokens", "waits")

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission = admission
        self._account = admission.account(tenant)
        self.waits = True
        self.tenant = tenant
        self.sequences = 0
        self.tokens = 0

    def weigh(self, sequences: int, tokens: int) -> None:
        """Before it goes to the engine. Raises HttpError (429)."""
        if self.waits:
            self._admission.weigh(self, sequences, tokens)
        self.spent(tokens)

    def spent(self, tokens: int) -> None:
        """Of a prompt or of an output."""
        self._account.spent(tokens)

    def begun(self) -> None:
        """Its first output is there."""
        if self.waits:
            self.waits = False
            self._admission.depart(self, served=True)

    def retry_after(self) -> int:
        """Seconds until what waits now has begun."""
        return self._admission.retry_after()

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.waits:
            self.waits = False
            self._admission.depart(self, served=False)
        self._admission.close(self)
