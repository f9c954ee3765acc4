"""A server under more than it can do: an open loop, what came back, how memory grows, what is held at the end."""

import asyncio
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fake_server import until

from octavo.load.driver import Driver, Plan
from octavo.load.http import Address, Client
from octavo.load.prose import Prose
from octavo.load.target import Target
from octavo.workload.lengths import parse_lengths
from octavo.workload.synthetic import Synthetic


@dataclass
class Soaked:
    """codes: answers by status, 0 for those that broke off. ttfts: seconds, sorted, of what was accepted. slope: bytes
    of resident memory a request, of the server and its engine together. held: blocks that are not back."""

    codes: Counter
    ttfts: list[float]
    tokens: int
    seconds: float
    slope: float
    memory: tuple[int, int]
    held: int

    @property
    def faults(self):
        """Answers that nobody should get: broken off, or 5xx other than 503."""
        return sum(count for code, count in self.codes.items() if not code or (code >= 500 and code != 503))

    def ttft(self, part):
        return self.ttfts[min(int(len(self.ttfts) * part), len(self.ttfts) - 1)]


def resident(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


def used(server):
    """Blocks that a request holds, of all engines."""
    stats = server.operator("/engines")[1]["engines"].values()
    return sum(each["blocks_total"] - each["blocks_free"] - each["blocks_cached"] for each in stats)


def offer(server, *, rate=None, concurrency=None, seconds, inputs="16-64", outputs="8-32", salt="soak", watch=None):
    """The records of requests that come at a rate, whatever becomes of them, or one after the other."""

    async def run():
        client = Client(Address.of(server.address), {})
        jobs = Synthetic(input_tokens=parse_lengths(inputs), output_tokens=parse_lengths(outputs), rate=rate).jobs()
        plan = Plan(concurrency=concurrency, seconds=seconds, timeout=120.0, grace=90.0)
        driver = Driver(client, Target(client.address, "default", "completions"), Prose(salt), plan)
        try:
            return await driver.run(jobs, watch)
        finally:
            client.close()

    return asyncio.run(run())


def measured_rate(server, concurrency, seconds, **lengths):
    """Requests per second that it completes for so many users."""
    records = offer(server, concurrency=concurrency, seconds=seconds, salt="rate", **lengths)
    done = [record for record in records if record.error is None]
    return len(done) / max(record.end for record in done)


def soak(server, *, rate, seconds, **lengths):
    pids = [server.process.pid, server.engine_pid()]
    memory, answered = [], []

    def watch(progress):
        answered.append(progress.sent - progress.open)
        memory.append(sum(map(resident, pids)))

    records = offer(server, rate=rate, seconds=seconds, watch=watch, **lengths)
    until(lambda: used(server) == 0 or None, 30)
    settled = len(memory) // 3
    slope = statistics.linear_regression(answered[settled:], memory[settled:]).slope
    accepted = [record for record in records if record.status == 200 and record.error is None]
    return Soaked(
        codes=Counter(record.status if record.status != 200 or record.error is None else 0 for record in records),
        ttfts=sorted(record.ttft for record in accepted),
        tokens=sum(record.counted for record in accepted),
        seconds=max(record.end for record in records),
        slope=slope,
        memory=(memory[settled], memory[-1]),
        held=used(server),
    )
