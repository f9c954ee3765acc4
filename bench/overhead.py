"""What HTTP and text cost: a whole server over an engine of zero cost, and an engine beside a server that is busy.

    python bench/overhead.py                     tokens/s through the server on one core; added latency per token
    python bench/overhead.py --profile FILE      the same, and what the HTTP process did (cProfile, of 64 streams)

The first needs two cores: one for the server and its engine, one for the clients. Streams are chat completions over
HTTP as clients see them: scheduler, wire, detokenizer, dialect, JSON, events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import sys
import tempfile
import time
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from fake_server import FakeServer  # noqa: E402

from octavo.weights.fetch import resolve  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
PROMPT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree. "


class Stream(asyncio.Protocol):
    """One streamed answer: when each read came, and how many events it held."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.times = array("d")
        self.events = 0
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: ")
        self.events += events
        self.times.extend([time.perf_counter()] * events)
        self.tail = (self.tail + data)[-16:]
        if b"[DONE]" in self.tail:
            self.transport.close()
            if not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the stream broke off: {exc}"))


def request(path: str, fields: dict[str, object]) -> bytes:
    body = json.dumps({"model": "default", "stream": True, "ignore_eos": True} | fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chat(place: int, tokens: int) -> bytes:
    content = f"{place} {PROMPT * 4}"
    return request("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": tokens})


async def run_streams(port: int, count: int, tokens: int) -> tuple[float, list[Stream]]:
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    streams = [
        (await loop.create_connection(lambda place=place: Stream(chat(place, tokens)), "127.0.0.1", port))[1]
        for place in range(count)
    ]
    await asyncio.gather(*(stream.done for stream in streams))
    return time.perf_counter() - begun, streams


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def throughput(folder: str, log: Path, profile: str | None) -> None:
    print(f"{'streams':>8} {'tokens/s':>9} {'us/token':>9} {'http':>6} {'engine':>7} {'tokens/event':>13}")
    counts = (64,) if profile else (1, 8, 64, 256)
    server = FakeServer(
        folder, log, machine={"vocab_size": 49152}, engine={"max_num_seqs": 256}, cores="0", profile=profile
    ).announced()
    try:
        asyncio.run(run_streams(server.port, 8, 64))
        for count in counts:
            tokens = max(128, min(1500, 60_000 // count))
            pids = (server.process.pid, server.engine_pid())
            before = [cpu_seconds(pid) for pid in pids]
            took, streams = asyncio.run(run_streams(server.port, count, tokens))
            http, engine = (cpu_seconds(pid) - past for pid, past in zip(pids, before, strict=True))
            total = count * tokens
            print(
                f"{count:>8} {total / took:>9.0f} {took / total * 1e6:>9.1f} {http / total * 1e6:>6.1f} "
                f"{engine / total * 1e6:>7.1f} {total / sum(stream.events for stream in streams):>13.1f}",
                flush=True,
            )
    finally:
        server.quit()
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(32)


def added_latency(folder: str, log: Path) -> None:
    """From the end of a step to the client's read of its token, one clock."""
    with tempfile.NamedTemporaryFile() as trace:
        machine = {"vocab_size": 49152, "step_seconds": 0.005, "trace": trace.name}
        server = FakeServer(folder, log, machine=machine, engine={"max_num_seqs": 256}, cores="0").announced()
        try:
            for count in (1, 8, 64):
                asyncio.run(run_streams(server.port, count, 4))
                Path(trace.name).write_bytes(b"")
                _, streams = asyncio.run(run_streams(server.port, count, 300))
                ends = array("d", Path(trace.name).read_bytes())
                late = sorted(delay for stream in streams for delay in delays(ends, stream.times))
                p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
                print(f"{count:>8} streams: added latency per token p50 {p50 * 1e6:6.0f} us, p99 {p99 * 1e6:6.0f} us")
        finally:
            server.quit()


def delays(ends: array[float], times: array[float]) -> list[float]:
    """Each read's distance to the last step that had ended before it."""
    found, place = [], 0
    for moment in times[2:-2]:
        while place + 1 < len(ends) and ends[place + 1] <= moment:
            place += 1
        found.append(moment - ends[place])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="what HTTP and text cost")
    parser.add_argument("--model", default="smollm2:135m", help="whose tokenizer and template are used")
    parser.add_argument("--profile", metavar="FILE")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    folder = str(resolve(args.model))
    with tempfile.TemporaryDirectory() as logs:
        throughput(folder, Path(logs) / "log", args.profile)
        if not args.profile:
            added_latency(folder, Path(logs) / "log")


if __name__ == "__main__":
    main()
