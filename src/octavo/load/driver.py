"""Sends the jobs of a workload when they are due, and notes what became of each.

Open loop: every request is sent at its moment, however many are open; its times count from that moment even when this
process was late. Closed loop: a fixed number of users, each sends when its last answer is complete.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from octavo.load.http import Client
from octavo.load.prose import Prose
from octavo.load.record import Record
from octavo.load.stream import StreamReader
from octavo.load.target import Target
from octavo.workload.job import Job


@dataclass(frozen=True, slots=True)
class Plan:
    """concurrency: users of a closed loop; None: an open loop. requests, seconds: whichever ends the sending first.
    timeout: of a request. grace: after the last one was sent, before what is open is cut. All times in seconds."""

    concurrency: int | None = None
    requests: int | None = None
    seconds: float | None = None
    timeout: float = 600.0
    grace: float = 60.0


@dataclass(slots=True)
class Progress:
    """What a watcher sees while the run goes on."""

    elapsed: float = 0.0
    sent: int = 0
    open: int = 0
    failed: int = 0
    tokens: int = 0  # pieces of output
    ttfts: list[float] = field(default_factory=list)  # of finished requests


class Driver:
    """One run. `stop` ends the sending, from a signal."""

    def __init__(self, client: Client, target: Target, prose: Prose, plan: Plan) -> None:
        self._client = client
        self._target = target
        self._prose = prose
        self._plan = plan
        self._zero = 0.0
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.records: list[Record] = []
        self.progress = Progress()

    def clock(self) -> float:
        """Seconds after the start of the run."""
        return time.perf_counter() - self._zero

    def stop(self) -> None:
        self._stopped.set()

    async def run(self, jobs: Iterable[Job], watch: Callable[[Progress], None] | None = None) -> list[Record]:
        """The records in order of sending; none is open any more."""
        plan = self._plan
        numbered = enumerate(itertools.islice(jobs, plan.requests))
        self._zero = time.perf_counter()
        watcher = asyncio.create_task(self._watch(watch)) if watch is not None else None
        try:
            if plan.concurrency is None:
                await self._send_when_due(numbered)
            else:
                users = [asyncio.create_task(self._user(numbered)) for _ in range(plan.concurrency)]
                self._tasks.update(users)
            await self._settle()
        finally:
            if watcher is not None:
                watcher.cancel()
        return self.records

    # ---- inside
    async def _send_when_due(self, numbered: Iterator[tuple[int, Job]]) -> None:
        for number, job in numbered:
            if self._plan.seconds is not None and job.at >= self._plan.seconds:
                return
            body = self._target.body(job, number, self._prose)
            late = self.clock() - job.at
            if late < 0:
                await self._pause(-late)
            else:
                await asyncio.sleep(0)  # answers are read even when sending lags
            if self._stopped.is_set():
                return
            task = asyncio.create_task(self._one(number, job, body, job.at))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _user(self, numbered: Iterator[tuple[int, Job]]) -> None:
        while not self._stopped.is_set():
            now = self.clock()
            if self._plan.seconds is not None and now >= self._plan.seconds:
                return
            following = next(numbered, None)
            if following is None:
                return
            number, job = following
            await self._one(number, job, self._target.body(job, number, self._prose), now)

    async def _one(self, number: int, job: Job, body: bytes, due: float) -> None:
        record = Record(number, due, job.input_tokens, job.output_tokens)
        self.records.append(record)
        self.progress.sent += 1
        self.progress.open += 1
        reader = StreamReader(record, self.clock)
        record.sent = self.clock()
        try:
            async with asyncio.timeout(self._plan.timeout):
                await self._client.post(self._target.path, body, reader)
            reader.finish()
        except TimeoutError:
            record.fail("timeout", f"after {self._plan.timeout:g} s", cut=True)
        except ConnectionRefusedError:
            record.fail("connection refused")
        except (OSError, ValueError) as error:
            record.fail("connection broke", str(error))
        except asyncio.CancelledError:
            record.fail("unfinished", cut=True)
            raise
        finally:
            record.end = self.clock()
            self._note(record)

    def _note(self, record: Record) -> None:
        progress = self.progress
        progress.open -= 1
        progress.failed += record.error is not None
        progress.tokens += record.pieces
        if record.error is None and record.ttft is not None:
            progress.ttfts.append(record.ttft)

    async def _settle(self) -> None:
        """Waits for what is open, users of a closed loop included; cuts it when it has had its time."""
        left: float | None = self._plan.grace
        if self._plan.concurrency is not None:
            left = None if self._plan.seconds is None else self._plan.seconds - self.clock() + self._plan.grace
        stopped = asyncio.create_task(self._stopped.wait())
        everything = asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.wait((everything, stopped), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await everything

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return

    async def _watch(self, watch: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.progress.elapsed = self.clock()
            watch(self.progress)
