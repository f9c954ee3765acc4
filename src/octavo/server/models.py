"""Which engines answer under which names: loaded when they are asked for, unloaded when memory or time says so.

Loads and unloads go one at a time. A model that is held by a request is never unloaded; of the others the one that was
let go of first makes room. Where all are held, one that has waited long enough goes first: new requests for the loaded
ones stand back until it is there.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from octavo.engine.executor import ProgressHook, no_progress
from octavo.errors import EngineError, OctavoError
from octavo.server.background import in_thread
from octavo.server.failures import HttpError
from octavo.server.port import TextEngine
from octavo.server.seat import Seat, ServedModel

_log = logging.getLogger("octavo.server")
ALIAS = "default"  # names the first model, whatever it is
RETRY_SECONDS = 5.0  # between two loads of a model that fails
PATIENCE_SECONDS = 5.0  # that a model waits for room before others stand back


class Models:
    """budget: bytes that loaded models may need together, None for no bound. idle_seconds: a model that nobody held for
    so long is unloaded, None for never. wait_seconds: what a request waits for its model."""

    def __init__(
        self,
        served: Sequence[ServedModel],
        *,
        aliases: Mapping[str, str] | None = None,
        budget: int | None = None,
        idle_seconds: float | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        self.seats = tuple(Seat(model) for model in served)
        by_name = {seat.name: seat for seat in self.seats}
        self.aliases = dict(aliases or {})
        self._by_name = {ALIAS: self.seats[0]} | {alias: by_name[name] for alias, name in self.aliases.items()}
        self._by_name |= by_name
        self._budget = budget
        self._idle_seconds = idle_seconds
        self._wait_seconds = wait_seconds
        self.opening: float | None = None  # how much of the first model is there, while the server only waits for it
        self._door = asyncio.Lock()
        self._taken = 0  # bytes, from before a load until the engine has ended
        self._released = asyncio.Event()
        self._waits: tuple[Seat, float] | None = None  # for room, since when
        self._loaded = asyncio.Event()  # or given up: set while none waits
        self._loaded.set()
        self._tasks: set[asyncio.Task[None]] = set()  # kept from being collected
        self._closing: set[asyncio.Task[None]] = set()  # of them, engines that died

    @classmethod
    def of(cls, llm: TextEngine) -> Models:
        """One model, which is loaded already."""
        models = cls([ServedModel(llm.info.name, lambda progress: llm)])
        models.seats[0].seat(llm, 0.0)
        return models

    # ---- what there is
    @property
    def error(self) -> OctavoError | None:
        """Why nothing can be served any more: the end of the engine where there is but one model."""
        llm = self.seats[0].llm
        return llm.error if llm is not None and len(self.seats) == 1 else None

    def engines(self) -> list[tuple[str, TextEngine]]:
        """Those that are loaded and serve, by the names of their models."""
        return [(seat.name, seat.alive) for seat in self.seats if seat.alive is not None]

    def listed(self) -> list[tuple[str, Seat]]:
        """Every name but `default`, aliases last."""
        own = [(seat.name, seat) for seat in self.seats]
        return own + [(alias, self._by_name[alias]) for alias in self.aliases]

    def find(self, name: str) -> Seat:
        """Raises HttpError (404) for a name that is not served."""
        seat = self._by_name.get(name)
        if seat is None:
            names = ", ".join(name for name, _ in self.listed())
            message = f"the model {name[:128]!r} is not served here; served: {names} (or {ALIAS!r})"
            raise HttpError(404, "model_not_found", message, param="model")
        return seat

    # ---- for a request
    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[TextEngine]:
        """The engine of that name, held for as long as one request runs on it; loaded first, where it is not.

        Raises HttpError: 404 for a name that is not served; 503 while the model loads for longer than a request waits,
        while models that are in use leave no room for it, and after a load that failed.
        """
        seat = self.find(name)
        await self._stand_back(seat)
        seat.holders += 1
        if seat.timer is not None:
            seat.timer.cancel()
        try:
            yield await self._engine(seat)
        finally:
            self._release(seat)

    async def open_first(self, progress: ProgressHook = no_progress) -> TextEngine:
        """Loads the first model before any request is taken. Nobody having asked for it, it is idle from then on.

        Raises what its load raises.
        """
        seat = self.seats[0]

        def advance(done: int, total: int) -> None:
            self.opening = seat.progress = done / max(total, 1)
            progress(done, total)

        self.opening = seat.progress = 0.0
        self._taken += seat.model.need
        llm = await in_thread(partial(seat.model.load, advance), "octavo-load")
        seat.seat(llm, _now())
        self.opening = seat.progress = None
        self._unload_later(seat)
        return llm

    async def unload(self, name: str) -> bool:
        """Now, unless a request holds it; whether it is unloaded. Raises HttpError (404)."""
        seat = self.find(name)
        async with self._door:
            if seat.llm is not None and not seat.holders:
                await self._unload(seat)
        return seat.llm is None

    # ---- from outside the event loop
    def close(self) -> None:
        """Ends every engine. Blocks until they have stopped."""
        for seat in self.seats:
            if seat.llm is not None:
                seat.llm.close()

    # ---- inside
    async def _engine(self, seat: Seat) -> TextEngine:
        if seat.alive is not None:
            return seat.alive
        if self.error is not None:
            raise HttpError(503, "not_ready", "the engine has stopped")
        self._bury(seat)
        if seat.loading is None:
            if seat.fault is not None and (left := seat.retry_at - _now()) > 0:
                raise _failed(seat, left)
            seat.loading = asyncio.create_task(self._load(seat))
        await asyncio.wait((seat.loading,), timeout=self._wait_seconds)
        if seat.loading is not None:
            raise _waiting(seat)
        if seat.alive is None:
            raise _failed(seat, RETRY_SECONDS)
        return seat.alive

    async def _stand_back(self, seat: Seat) -> None:
        """Waits while another model, for which there is no room, has waited for longer. Raises HttpError (503)."""
        if self._waits is None or self._waits[0] is seat or seat.llm is None:
            return
        if _now() - self._waits[1] < PATIENCE_SECONDS:
            return
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._loaded.wait()
        except TimeoutError:
            raise _waiting(seat) from None

    def _release(self, seat: Seat) -> None:
        seat.holders -= 1
        seat.released_at = _now()
        self._bury(seat)
        if seat.holders:
            return
        self._released.set()
        self._unload_later(seat)

    def _unload_later(self, seat: Seat) -> None:
        if self._idle_seconds is not None and seat.llm is not None:
            loop, since = asyncio.get_running_loop(), seat.released_at
            seat.timer = loop.call_later(self._idle_seconds, lambda: self._spawn(self._unload_idle(seat, since)))

    def _bury(self, seat: Seat) -> None:
        """Notices an engine that died; its model is loaded again for the next request, but not over and over."""
        llm = seat.llm
        if llm is None or llm.error is None or self.error is not None:
            return
        seat.llm, seat.fault, seat.retry_at = None, llm.error, seat.loaded_at + RETRY_SECONDS
        _log.error("%s: %s: %s; the next request loads it again", llm.error.code, seat.name, llm.error.message)
        closing = self._spawn(self._end(seat, llm))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _load(self, seat: Seat) -> None:
        """Leaves an engine or a fault."""
        try:
            async with self._door:
                if await self._make_room(seat):
                    await self._fill(seat)
        finally:
            seat.loading, seat.progress = None, None
            self._loaded.set()

    async def _fill(self, seat: Seat) -> None:
        seat.progress = 0.0
        self._taken += seat.model.need
        try:
            seat.seat(await in_thread(partial(seat.model.load, partial(_advance, seat)), "octavo-load"), _now())
        except Exception as error:
            self._taken -= seat.model.need
            fault = error if isinstance(error, OctavoError) else EngineError(f"{type(error).__name__}: {error}")
            seat.fault, seat.retry_at = fault, _now() + RETRY_SECONDS
            _log.error("%s: %s could not be loaded: %s", fault.code, seat.name, fault.message)
        else:
            _log.info("%s is loaded", seat.name)

    async def _make_room(self, seat: Seat) -> bool:
        """Unloads what must go, once nobody holds it; False when nobody waits for the model any more."""
        try:
            while seat.holders and self._budget is not None and self._taken + seat.model.need > self._budget:
                if self._closing:
                    await asyncio.wait(self._closing)
                    continue
                idle = [other for other in self.seats if other.llm is not None and not other.holders]
                if idle:
                    await self._unload(min(idle, key=lambda other: other.released_at))
                    continue
                if self._waits is None:
                    self._waits = seat, _now()
                    self._loaded.clear()
                self._released.clear()
                await self._released.wait()
            return seat.holders > 0
        finally:
            self._waits = None

    async def _unload_idle(self, seat: Seat, since: float) -> None:
        """Unless it was used again while the door was shut."""
        async with self._door:
            if seat.llm is not None and not seat.holders and seat.released_at == since:
                await self._unload(seat)

    async def _unload(self, seat: Seat) -> None:
        """Behind the door. From its first moment on requests find no engine, and wait for the door to load one."""
        llm, seat.llm = seat.llm, None
        assert llm is not None
        await self._end(seat, llm)
        _log.info("%s is unloaded", seat.name)

    async def _end(self, seat: Seat, llm: TextEngine) -> None:
        await in_thread(llm.close, "octavo-unload")
        self._taken -= seat.model.need
        self._released.set()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _now() -> float:
    return asyncio.get_running_loop().time()


def _advance(seat: Seat, done: int, total: int) -> None:
    seat.progress = done / max(total, 1)


def _waiting(seat: Seat) -> HttpError:
    """For a request that has waited long enough."""
    if seat.progress is None:
        message = f"the model {seat.name!r} waits for memory that models in use hold: try again"
        return HttpError(503, "model_waits", message, retry_after=math.ceil(RETRY_SECONDS))
    usual = RETRY_SECONDS if seat.info is None else seat.info.load_seconds
    message = f"the model {seat.name!r} is being loaded ({seat.progress:.0%}): try again"
    return HttpError(503, "model_loading", message, retry_after=math.ceil((1 - seat.progress) * usual))


def _failed(seat: Seat, retry_after: float) -> HttpError:
    message = f"the model {seat.name!r} could not be loaded or has stopped: the server's log says why"
    return HttpError(503, "model_failed", message, retry_after=math.ceil(retry_after))
