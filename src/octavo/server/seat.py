"""One served model: how it is loaded, whether it is, who holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from octavo.engine.executor import ProgressHook
from octavo.engine.port import ModelInfo
from octavo.errors import OctavoError
from octavo.server.port import TextEngine

State = Literal["cold", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """load: blocks; raises OctavoError. need: bytes while loaded, 0 where nobody counts. context: tokens that fit."""

    name: str
    load: Callable[[ProgressHook], TextEngine]
    need: int = 0
    context: int = 0


@dataclass(slots=True, eq=False)
class Seat:
    """holders: requests that run on it or wait for it; with any, it is not unloaded. Times are the event loop's.

    fault: of the last load, or how the engine ended; until retry_at it is the answer, then a request tries again.
    """

    model: ServedModel
    llm: TextEngine | None = None
    info: ModelInfo | None = None  # of the latest load
    holders: int = 0
    loading: asyncio.Task[None] | None = None
    progress: float | None = None  # of the load, in [0, 1]; None before it has begun
    loaded_at: float = 0.0
    released_at: float = 0.0
    fault: OctavoError | None = None
    retry_at: float = 0.0
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    loads: int = 0

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def alive(self) -> TextEngine | None:
        """The engine, where one is loaded and serves."""
        return self.llm if self.llm is not None and self.llm.error is None else None

    @property
    def state(self) -> State:
        if self.alive is not None:
            return "ready"
        if self.loading is not None or self.progress is not None:
            return "loading"
        return "cold" if self.fault is None and self.llm is None else "failed"

    @property
    def context(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return self.model.context if self.info is None else min(self.info.max_model_len, self.info.kv_tokens)

    def seat(self, llm: TextEngine, now: float) -> None:
        self.llm, self.info, self.fault = llm, llm.info, None
        self.loaded_at = self.released_at = now
        self.loads += 1
