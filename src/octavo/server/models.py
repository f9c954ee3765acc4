"""Which engines answer under which names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.server.failures import HttpError
from octavo.server.port import TextEngine

ALIAS = "default"  # names the first model, whatever it is


class Models:
    """The served model and its names."""

    def __init__(self, llm: TextEngine) -> None:
        self._llm = llm

    @property
    def first(self) -> TextEngine:
        return self._llm

    def find(self, name: str) -> TextEngine:
        """Raises HttpError (404) for a name that is not served."""
        served = self._llm.info.name
        if name not in (served, ALIAS):
            message = f"the model {name[:128]!r} is not served here; served: {served} (or {ALIAS!r})"
            raise HttpError(404, "model_not_found", message, param="model")
        return self._llm

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[TextEngine]:
        """The engine of that name, held for as long as one request runs on it. Raises HttpError (404)."""
        yield self.find(name)
