"""Bars on stderr for people who wait: only where stderr is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class CountBar:
    """How many of `total` requests are done, and the tokens written so far."""

    def __init__(self, label: str, total: int, *, shown: bool = True) -> None:
        self._bar: Progress | None = None
        if shown and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[rate]}"), console=Console(stderr=True))
            self._task = self._bar.add_task(label, total=total, rate="")
        self._tokens = 0

    def __enter__(self) -> CountBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, tokens: int) -> None:
        if self._bar is None:
            return
        self._tokens += tokens
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{self._tokens / elapsed:.0f} tok/s" if elapsed else ""
        self._bar.update(self._task, advance=done, rate=rate)
