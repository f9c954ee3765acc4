"""Virtual time as a trace that chrome://tracing and Perfetto show: a row a replica, a bar a step."""

from __future__ import annotations

import json
from typing import Any

from octavo.sim.service import StepRecord

MOST = 500_000  # steps that are kept; the first ones


class ChromeTrace:
    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._left_out = 0

    def step(self, record: StepRecord) -> None:
        if len(self._events) >= MOST:
            self._left_out += 1
            return
        self._events.append(
            {
                "name": f"{record.tokens} tokens",
                "ph": "X",
                "pid": 0,
                "tid": record.replica,
                "ts": record.begin * 1e6,
                "dur": record.seconds * 1e6,
                "args": {"tokens": record.tokens, "requests": record.requests, "waiting": record.waiting},
            }
        )

    def document(self) -> str:
        return json.dumps({"traceEvents": self._events, "otherData": {"steps left out": self._left_out}})
