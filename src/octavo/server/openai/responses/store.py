"""Responses that are kept for a while, in memory, one shelf a tenant: counted, weighed, the oldest given up first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.server.failures import HttpError
from octavo.server.openai.responses.items import Item

MAX_KEPT = 512  # responses a tenant
MAX_BYTES = 32 << 20  # of JSON a tenant
MAX_RUNNING = 32  # in the background, a tenant


class Tape:
    """Events of a response that runs in the background, for readers who come and go."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self._ended = False
        self._news = asyncio.Event()

    def add(self, event: bytes) -> None:
        self.events.append(event)
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def read(self, start: int) -> AsyncGenerator[bytes, None]:
        """From event number `start` to the end."""
        while True:
            while start < len(self.events):
                yield self.events[start]
                start += 1
            if self._ended:
                return
            await self._news.wait()

    def _wake(self) -> None:
        """Each waits for the news of its own moment."""
        self._news.set()
        self._news = asyncio.Event()


@dataclass(slots=True)
class Kept:
    """response: as it is answered. items: its own input. task: while it runs in the background. tape: if streamed."""

    response: dict[str, Any]
    items: list[Item]
    previous: str | None
    task: asyncio.Task[None] | None = None
    tape: Tape | None = None
    size: int = field(default=0)

    def weigh(self) -> None:
        taped = 0 if self.tape is None else sum(map(len, self.tape.events))
        self.size = len(msgspec.json.encode((self.response, self.items))) + taped


class Shelf:
    """The responses of one tenant. A response that is used is young again, and so are those that it builds on."""

    def __init__(self, max_kept: int, max_bytes: int) -> None:
        self._max_kept, self._max_bytes = max_kept, max_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        return self._size

    @property
    def running(self) -> int:
        return sum(kept.task is not None for kept in self._kept.values())

    def put(self, kept: Kept) -> bool:
        """Keeps it, in place of what has its id; False for one that weighs more than a whole shelf may."""
        name = kept.response["id"]
        self.drop(name)
        kept.weigh()
        if kept.size > self._max_bytes:
            return False
        self._kept[name] = kept
        self._size += kept.size
        self._touch(name)
        for old in [name for name, kept in self._kept.items() if kept.task is None]:
            if len(self._kept) <= self._max_kept and self._size <= self._max_bytes:
                break
            self.drop(old)
        return name in self._kept

    def get(self, name: str) -> Kept:
        """Raises HttpError (404)."""
        if name not in self._kept:
            raise HttpError(404, "response_not_found", f"the response {name[:64]!r} is not kept here, or not any more")
        self._touch(name)
        return self._kept[name]

    def weigh(self, kept: Kept) -> None:
        """What is kept has grown."""
        if self._kept.get(kept.response["id"]) is kept:
            self.put(kept)

    def drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._size -= kept.size

    def conversation(self, name: str) -> list[Item]:
        """Input and output of that response and of all before it, oldest first. Raises HttpError (400)."""
        found: list[Kept] = []
        at: str | None = name
        while at is not None:
            kept = self._kept.get(at)
            if kept is None:
                message = f"the response {at[:64]!r} is not kept here, or not any more: send the conversation as input"
                raise HttpError(400, "previous_response_not_found", message, param="previous_response_id")
            found.append(kept)
            at = kept.previous
        self._touch(name)
        return [item for kept in reversed(found) for item in [*kept.items, *kept.response["output"]]]

    def item(self, name: str) -> Item:
        """What was answered, or given, under that id. Raises HttpError (404)."""
        for kept in reversed(self._kept.values()):
            for item in [*kept.response["output"], *kept.items]:
                if item["id"] == name:
                    return item
        raise HttpError(
            404, "item_not_found", f"the item {name[:64]!r} is not kept here, or not any more", param="input"
        )

    def _touch(self, name: str) -> None:
        """Those that it builds on last: they must not be given up before it."""
        at: str | None = name
        while at is not None and at in self._kept:
            self._kept.move_to_end(at)
            at = self._kept[at].previous


class ResponseStore:
    """A shelf for each tenant."""

    def __init__(self, max_kept: int = MAX_KEPT, max_bytes: int = MAX_BYTES) -> None:
        self._bounds = max_kept, max_bytes
        self._shelves: dict[str, Shelf] = {}

    def of(self, tenant: str) -> Shelf:
        if tenant not in self._shelves:
            self._shelves[tenant] = Shelf(*self._bounds)
        return self._shelves[tenant]
