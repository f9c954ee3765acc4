"""An engine beside a server that is busy: steps at batch 8, idle and while bodies, templates and streams are served.

    python bench/beside.py [--model smollm2:135m] [--tokens 250] [--rounds 2] [--apart]

The engine has all cores but one. Busy: bodies of 1 MB are parsed (10 a second), prompts of 64 KB rendered and tokenized
(4 a second), and 200 streams of a second, scripted engine written (10 tokens a second each). --apart: the server and
these clients keep to the first core, as if the clients were elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from array import array
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "bench")]
sys.path[:0] = PATHS

from fake_server import free_port  # noqa: E402
from overhead import Stream, request  # noqa: E402

from octavo.weights.fetch import resolve  # noqa: E402

BATCH, STREAMS = 8, 200
BLOCKS = 256  # few enough that all have been touched before anything is measured: a first touch costs milliseconds
CHILD = """
import os, struct, sys, time
sys.path[:0] = {paths!r}
from octavo.engine import child, loop
if {cores!r}:
    os.sched_setaffinity(0, {cores!r})
file, turn = open({trace!r}, "ab", buffering=0), loop.EngineLoop.turn
def timed(self):
    begun = time.perf_counter()
    turn(self)
    if self._rows == {batch}:
        file.write(struct.pack("d", time.perf_counter() - begun))
loop.EngineLoop.turn = timed
sys.exit(child.main())
"""


def serve(model: str, port: int, trace: str, apart: bool) -> int:
    """The server process: the real model in a child, the scripted one in a thread of its own."""
    import fake_engine

    from octavo.config import EngineConfig
    from octavo.engine import executor
    from octavo.engine.streams import AsyncLLM
    from octavo.server.app import create_app
    from octavo.server.config import ServerConfig
    from octavo.server.fleet import FleetConfig
    from octavo.server.serving import bind, run
    from octavo.server.state import ServerState

    cores = sorted(os.sched_getaffinity(0))
    others = cores[1:] if apart else []
    executor.CHILD = ("-c", CHILD.format(paths=PATHS, cores=others, trace=trace, batch=BATCH))
    machine = fake_engine.Machine(step_seconds=0.1, vocab_size=49152)
    executor.open_engine = lambda config, *rest: fake_engine.open_fake(machine, config, None, None)  # type: ignore
    if apart:
        os.sched_setaffinity(0, {cores[0]})
    config = ServerConfig(port=port, max_queued_requests=1000)
    engines = [
        EngineConfig(
            model=model, served_model_name="real", threads=max(len(cores) - 1, 1), max_num_seqs=BATCH, num_blocks=BLOCKS
        ),
        EngineConfig(model=model, served_model_name="script", max_num_seqs=STREAMS, num_blocks=4096),
    ]
    models = FleetConfig(aliases={}).models(
        engines, lambda config, progress: AsyncLLM(config, process=config.served_model_name == "real")
    )
    with bind(config) as listener:
        state = ServerState()
        app = create_app(models, config, state)

        async def opened() -> None:
            await models.open_first()

        return run(app, models, config, state, listener, lambda line: print(line, flush=True), opened)


async def stream(port: int, fields: dict[str, object]) -> None:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: Stream(request("/v1/completions", fields)), "127.0.0.1", port)
    await protocol.done


async def post(port: int, body: bytes) -> int:
    """The status of one whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close"
    )
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def every(seconds: float, port: int, body: bytes, counted: Counter[int]) -> None:
    while True:
        status = await post(port, body)
        counted[status] += 1
        await asyncio.sleep(seconds)


async def decode(port: int, tokens: int) -> None:
    fields = {"model": "real", "max_tokens": tokens}
    await asyncio.gather(*(stream(port, fields | {"prompt": f"Story {n}: once"}) for n in range(BATCH)))


async def busy(port: int, tokens: int) -> Counter[int]:
    text = "The quick brown fox jumps over the lazy dog. "
    large = {"model": "real", "messages": [{"role": "user", "content": text * 23000}], "temperature": -1}
    long = {"model": "real", "messages": [{"role": "user", "content": text * 1456}], "max_tokens": 1}
    counted: Counter[int] = Counter()
    beside = [
        asyncio.create_task(stream(port, {"model": "script", "prompt": f"{n} words", "max_tokens": 1900}))
        for n in range(STREAMS)
    ]
    await asyncio.sleep(2.0)
    beside += [asyncio.create_task(every(0.1, port, json.dumps(large).encode(), counted))]
    beside += [asyncio.create_task(every(0.25, port, json.dumps(long).encode(), counted))]
    await decode(port, tokens)
    for task in beside:
        task.cancel()
    return counted


def steps_of(trace: Path) -> list[float]:
    """Seconds of each; the first ones, in which prompts are computed, are left out."""
    times = array("d", trace.read_bytes())[BATCH:]
    trace.write_bytes(b"")
    return list(times)


def part(times: list[float], share: float) -> float:
    """In milliseconds."""
    return sorted(times)[int(len(times) * share)] * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description="an engine beside a busy server")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=2, help="idle and busy in turns")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "TRACE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    model = str(resolve(args.model))
    if args.serve:
        return serve(model, int(args.serve[0]), args.serve[1], args.apart)
    port, idle, loaded, counted = free_port(), [], [], Counter()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        words = [sys.executable, __file__, "--model", args.model, "--serve", str(port), str(trace)]
        server = subprocess.Popen(words + (["--apart"] if args.apart else []), stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None and server.stdout.readline().startswith("listening")
            if args.apart:
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            asyncio.run(decode(port, args.tokens))
            steps_of(trace)
            for _ in range(args.rounds):
                asyncio.run(decode(port, args.tokens))
                idle += steps_of(trace)
                counted.update(asyncio.run(busy(port, args.tokens)))
                loaded += steps_of(trace)
        finally:
            server.terminate()
            server.wait(60)
    for name, times in (("idle", idle), ("busy", loaded)):
        print(f"{name}: step p50 {part(times, 0.5):.2f} ms, p99 {part(times, 0.99):.2f} ms, {len(times)} steps")
    ratios = (
        f"p{share:.0%}".rstrip("%") + f" {part(loaded, share) / part(idle, share):.2f}" for share in (0.5, 0.9, 0.99)
    )
    print(f"busy / idle: {', '.join(ratios)}; answers beside by status: {dict(counted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
