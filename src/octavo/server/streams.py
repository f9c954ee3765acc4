"""Engine streams of one HTTP request: opened so that a refusal comes before the answer, merged, and always closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from octavo.engine.outputs import StreamDelta


class EngineStream:
    """One engine stream with its first step taken early. `close` aborts it, whatever state it is in."""

    def __init__(self, stream: AsyncGenerator[StreamDelta, None]) -> None:
        self._stream = stream
        self._first: asyncio.Future[StreamDelta] | None = None

    async def open(self) -> None:
        """Takes the step up to the first wait. Raises what the engine refuses."""
        self._first = asyncio.ensure_future(anext(self._stream))
        await asyncio.sleep(0)
        if self._first.done():
            self._first.result()

    async def deltas(self) -> AsyncGenerator[StreamDelta, None]:
        if self._first is not None:
            yield await self._first
        async for delta in self._stream:
            yield delta

    async def close(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._first
        await self._stream.aclose()


async def merged(streams: Sequence[EngineStream]) -> AsyncGenerator[tuple[int, StreamDelta], None]:
    """(which stream, delta) as they come. An error of one ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0].deltas()) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, StreamDelta | Exception | None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_drain(place, stream, arrived)) for place, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            place, item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield place, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(
    place: int, stream: EngineStream, arrived: asyncio.Queue[tuple[int, StreamDelta | Exception | None]]
) -> None:
    try:
        async with aclosing(stream.deltas()) as deltas:
            async for delta in deltas:
                arrived.put_nowait((place, delta))
        arrived.put_nowait((place, None))
    except Exception as error:
        arrived.put_nowait((place, error))
