"""Whether engines that have work take steps: health that does not ask who answers, but what gets done."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo.server.background import in_thread
from octavo.server.port import TextEngine

LOOK_SECONDS = 1.0
HUNG_SECONDS = 180.0  # more than an engine's own watchdog allows


@dataclass(frozen=True, slots=True)
class Silence:
    """How many steps the engine had taken, and since when it has taken no more."""

    llm: TextEngine
    steps: int
    since: float


class Pulse:
    """`look` now and then; `silence` says how long an engine has had work and taken no step. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[str, Silence] = {}  # engines that had work at the last look

    def look(self, engines: Iterable[tuple[str, TextEngine]]) -> None:
        silent = {}
        for name, llm in engines:
            if llm.unfinished > 0:
                now = Silence(llm, llm.stats().steps, self._clock())
                before = self._silent.get(name)
                same = before is not None and before.llm is llm and before.steps == now.steps
                silent[name] = before if before is not None and same else now
        self._silent = silent

    def silence(self) -> tuple[float, str]:
        """Of the engine that has been silent for longest: seconds as of now, and its name. 0.0 without any."""
        now = self._clock()
        silent = [(now - each.since, name) for name, each in self._silent.items() if each.llm.unfinished > 0]
        return max(silent, default=(0.0, ""))

    async def watch(self, engines: Callable[[], Iterable[tuple[str, TextEngine]]]) -> None:
        """Ends engines that are silent for too long, for as long as it runs. A process that was stopped ends so: its
        own watchdog stands with it."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(engines())
            seconds, name = self.silence()
            if seconds > HUNG_SECONDS:
                print(f"error: engine_hung: {name} took no step for {seconds:.0f} s", file=sys.stderr, flush=True)
                await in_thread(self._silent[name].llm.close, "octavo-hung")
