"""What became of one request. Times in seconds after the start of the run."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Record:
    """due: when it was to be sent, from which all its times count, whenever it was sent. first, last: the arrival of
    its first and latest piece of output. gaps: between two arrivals. cut: this side ended it; its times are then lower
    bounds."""

    number: int
    due: float
    input_tokens: int
    output_tokens: int  # wanted; `tokens` came
    sent: float = 0.0
    first: float | None = None
    last: float = 0.0
    end: float = 0.0
    status: int = 0
    prompt_tokens: int | None = None  # as the server counts, like the next two
    cached_tokens: int | None = None
    tokens: int | None = None
    gaps: array[float] = field(default_factory=lambda: array("d"))
    error: str | None = None  # its kind
    message: str = ""
    cut: bool = False

    @property
    def lag(self) -> float:
        return self.sent - self.due

    @property
    def ttft(self) -> float | None:
        """Of a request that was cut before any output, how long it had waited."""
        if self.first is not None:
            return self.first - self.due
        return self.end - self.due if self.cut else None

    @property
    def e2e(self) -> float:
        return self.end - self.due

    @property
    def pieces(self) -> int:
        return 0 if self.first is None else len(self.gaps) + 1

    @property
    def counted(self) -> int:
        """Tokens of output: what the server counted, else the pieces that came."""
        return self.pieces if self.tokens is None else self.tokens

    @property
    def tpot(self) -> float | None:
        """Mean time of a token after the first."""
        if self.first is None or self.counted < 2:
            return None
        return (self.last - self.first) / (self.counted - 1)

    def piece(self, now: float) -> None:
        """Some output came."""
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now

    def fail(self, kind: str, message: str = "", *, cut: bool = False) -> None:
        """The first cause stays."""
        if self.error is None:
            self.error, self.message, self.cut = kind, message, cut
