"""An open native session: one native call a step; what it exports and its caches as numpy views."""

from __future__ import annotations

from typing import Any

from octavo.errors import EngineError
from octavo.types import Numerics


class NativeSession:
    """See backends/port.py."""

    def __init__(
        self, native: Any, programs: tuple[str, ...], numerics: Numerics, notes: tuple[str, ...], mapped: Any = None
    ) -> None:
        """mapped: the file that the session's weights lie in, if they do."""
        self.numerics = numerics
        self.notes = notes
        self._native = native
        self._mapped = mapped
        self._handles: dict[str, Any] = {}
        self._numbers = {name: number for number, name in enumerate(programs)}

    def run(self, program: str, header: Any) -> None:
        """Raises EngineError for a header that the limits or the block tables contradict; nothing has run then."""
        try:
            self._native.run(self._numbers[program], header)
        except RuntimeError as error:
            raise EngineError(f"{program}: {error}") from None

    def view(self, name: str) -> Any:
        return self._native.view(name)

    def logits(self, name: str) -> Any:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self._native.exported(name)
        return handle

    def cache_bytes(self) -> Any:
        return self._native.cache_bytes()

    def profile(self, program: str, *, on: bool) -> list[tuple[str, float]]:
        """Seconds that each operator has taken since profiling began, waiting for its threads included. Turns it on
        or off for the steps that follow."""
        self._native.set_profiling(on)
        return list(self._native.profile(self._numbers[program]))

    def weight_bytes(self) -> dict[str, int]:
        """Bytes that each weight is streamed as, padding included."""
        return dict(self._native.weight_bytes())

    @property
    def steps(self) -> int:
        return int(self._native.steps)

    @property
    def barriers(self) -> int:
        return int(self._native.barriers)

    def close(self) -> None:
        """Gives weights and caches back once no view of them is held."""
        self._native = self._mapped = None
        self._handles.clear()
