"""Twice the load that a server can carry, for a while: `make soak`; figures in docs/reliability.md.

    python bench/soak.py [--model smollm2:135m | --fake] [--seconds 600] [--flood]

Measures the rate of requests that 16 users complete, then offers twice that, open loop, and says what came back, how
long accepted ones waited, how resident memory grew, and whether every block is back. --flood instead: one key sends 500
requests at once, another then one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from fake_server import FakeServer  # noqa: E402
from soaking import measured_rate, soak  # noqa: E402

from octavo.weights.fetch import resolve  # noqa: E402

KEYS = ("flood", "quiet")


def report(server: FakeServer, seconds: float) -> bool:
    rate = measured_rate(server, concurrency=16, seconds=min(20.0, seconds / 3))
    print(
        f"completed by 16 users: {rate:.2f} requests/s; offered now: {2 * rate:.2f}/s for {seconds:.0f} s", flush=True
    )
    found = soak(server, rate=2 * rate, seconds=seconds)
    total = sum(found.codes.values())
    shares = ", ".join(
        f"{code or 'broken'} {count} ({count / total:.1%})" for code, count in sorted(found.codes.items())
    )
    print(f"answers: {shares}; faults (5xx other than 503, broken off): {found.faults}")
    print(f"time to first token of accepted requests: p50 {found.ttft(0.5):.2f} s, p99 {found.ttft(0.99):.2f} s")
    print(f"output: {found.tokens / found.seconds:.0f} tokens/s")
    first, last = (size / 2**20 for size in found.memory)
    print(f"resident memory of server and engine: {first:.1f} -> {last:.1f} MiB, {found.slope:+.0f} bytes a request")
    print(f"blocks that are not back: {found.held}")
    return found.faults == 0 and found.held == 0 and found.slope < 1024


def ask(port: int, key: str, place: int, tokens: int, times: list[float]) -> None:
    """Notes the seconds to the first event."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    fields = {"model": "default", "prompt": f"{key} {place}: once upon a time", "max_tokens": tokens, "stream": True}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request("POST", "/v1/completions", json.dumps(fields | {"ignore_eos": True}), headers)
    response = connection.getresponse()
    response.readline()
    times.append(time.perf_counter() - begun)
    response.read()


def flood(server: FakeServer, requests: int = 500) -> bool:
    """How long one request of another key waits."""
    times: list[float] = []
    threads = [threading.Thread(target=ask, args=(server.port, "flood", n, 32, times)) for n in range(requests)]
    for thread in threads:
        thread.start()
    time.sleep(2.0)
    begun = len(times)
    own: list[float] = []
    ask(server.port, "quiet", 0, 32, own)
    for thread in threads:
        thread.join()
    middle = statistics.median(times)
    print(f"{requests} requests of one key: first token after p50 {middle:.2f} s, last {max(times):.2f} s")
    print(f"one of another key, when {begun} of them had begun: first token after {own[0]:.2f} s")
    return own[0] < middle


def main() -> int:
    parser = argparse.ArgumentParser(description="twice the load that a server can carry")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--fake", action="store_true", help="an engine that costs nothing")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--flood", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        serve: dict[str, object] = {"admin_socket": f"{folder}/operator"}
        if args.flood:
            (Path(folder) / "keys").write_text("\n".join(KEYS))
            serve |= {"api_key_file": f"{folder}/keys", "max_queued_requests": 1000}
        # a pool that is all touched soon: else resident memory grows with the blocks that are used for the first time
        engine = {"num_blocks": 512, "max_num_seqs": 16, "max_model_len": 2048}
        machine = {"step_seconds": 0.005, "vocab_size": 49152} if args.fake else None
        server = FakeServer(
            resolve(args.model), f"{folder}/log", machine=machine, real=not args.fake, serve=serve, engine=engine
        ).announced()
        try:
            good = flood(server) if args.flood else report(server, args.seconds)
            return 0 if server.quit() == 0 and good else 1
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
