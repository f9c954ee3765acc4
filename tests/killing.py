"""SIGKILL for an engine, a server or a client at a random moment: when all streams have ended, and who serves then."""

import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field

from fake_server import rest, until
from soaking import used

VICTIMS = ("engine", "server", "client")
LIMIT = 2.0  # seconds in which every stream ends


@dataclass
class Killed:
    """Seconds from each kill to the end of the last stream (of a client: until its blocks are free), by victim; what
    went wrong, in words; seconds from a restart to the first answer."""

    ends: dict[str, list[float]] = field(default_factory=lambda: {victim: [] for victim in VICTIMS})
    faults: list[str] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)


def kills(start, rounds, rng, killed, *, streams=4, tokens=2000, longest=0.3):
    """start() -> a server that has announced itself. Ends with the last server."""
    server = start()
    for number in range(rounds):
        victim = VICTIMS[number % len(VICTIMS)]
        open_streams = [
            server.stream(prompt=f"{number} {place}", max_tokens=tokens, ignore_eos=True) for place in range(streams)
        ]
        client = _client(server, tokens) if victim == "client" else None
        time.sleep(rng.uniform(0, longest))
        if client is not None:
            _kill_client(server, client, open_streams, killed)
            continue
        begun = time.monotonic()
        os.kill(server.engine_pid() if victim == "engine" else server.process.pid, signal.SIGKILL)
        for connection, received in open_streams:
            connection.settimeout(30)
            text = rest(connection, received)
            if victim == "engine" and b'"error"' not in text:
                killed.faults.append(f"{number} {victim}: a stream ended without an error")
        killed.ends[victim].append(time.monotonic() - begun)
        code = server.process.wait(30)
        if code != (70 if victim == "engine" else -signal.SIGKILL):
            killed.faults.append(f"{number} {victim}: exit code {code}")
        server.end()
        begun = time.monotonic()
        server = start(server.port)
        status = server.ask("/v1/completions", {"model": "default", "prompt": "Hi", "max_tokens": 2})[0]
        killed.restarts.append(time.monotonic() - begun)
        if status != 200:
            killed.faults.append(f"{number} {victim}: the next server answered {status}")
    server.end()


def _kill_client(server, client, open_streams, killed):
    """Its blocks come back and nobody else's stream ends."""
    others = sum(1 for _ in open_streams)
    begun = time.monotonic()
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    until(lambda: server.ask("/health/ready")[2]["running"] == others or None)
    killed.ends["client"].append(time.monotonic() - begun)
    for connection, _ in open_streams:
        if not select.select([connection], [], [], 5)[0] or not connection.recv(65536):
            killed.faults.append("client: a neighbour's stream ended")
        connection.close()
    until(lambda: used(server) == 0 or None)


def _client(server, tokens):
    """The process id of a client that reads its stream."""
    reader, writer = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            connection, _ = server.stream(prompt="client", max_tokens=tokens, ignore_eos=True)
            writer.sendall(b"x")
            while connection.recv(65536):
                pass
        finally:
            os._exit(0)
    reader.recv(1)
    reader.close()
    writer.close()
    return pid
