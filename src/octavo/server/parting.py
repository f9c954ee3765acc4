"""The end of a connection whose other side may still be sending or reading: it loses no answer, and it comes.

A socket that is closed with bytes unread, or that gets some later, resets its connection, and what the other side has
not read of an answer is gone: the refusal of a body that is on its way would be a broken connection. So the end is said
first, and what still comes is read and dropped. A time bounds that, and also how long the last bytes wait for a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Parting(asyncio.Transport):
    """A transport that closes so. sending: whether more may come. seconds: from its close to its end, at most."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, sending: Callable[[], bool], seconds: float
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._sending = sending
        self._seconds = seconds
        self._end: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """A second one does not wait for the other side."""
        if self.is_closing():
            self.cut()
            return
        sending = self._sending()
        if sending or self._transport.get_write_buffer_size():
            self._end = self._loop.call_later(self._seconds, self._transport.abort)
        if sending:
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def cut(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._end is not None or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._end is None:
            self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if self._end is None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
