"""SIGKILL for an engine, a server or a client at a random moment: when all streams have ended, and who serves then."""

import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass, field

from fake_server import rest, until
from soaking import used

VICTIMS = ("engine", "server", "client")
LIMIT = 2.0  # seconds in which every stream ends
STILL_SECONDS = 0.5  # without a turn of a thread that only looks at the clock


@dataclass
class Killed:
    """Seconds from each kill to the end of the last stream (of a client: until its blocks are free), by victim; what
    went wrong, in words; seconds from a restart to the first answer. stood: kills that were done again."""

    ends: dict[str, list[float]] = field(default_factory=lambda: {victim: [] for victim in VICTIMS})
    faults: list[str] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    stood: int = 0

    @property
    def count(self):
        return sum(map(len, self.ends.values()))


class Ticker(threading.Thread):
    """Notices that all stood still (a machine that sleeps, processes that were stopped): such a time says nothing."""

    def __init__(self):
        super().__init__(daemon=True)
        self.still_at = 0.0
        self.ends = threading.Event()

    def run(self):
        before = time.monotonic()
        while not self.ends.wait(0.02):
            now = time.monotonic()
            if now - before > STILL_SECONDS:
                self.still_at = now
            before = now

    def stood(self, since):
        time.sleep(0.05)
        return self.still_at > since


def kills(start, numbers, rng, killed, *, streams=4, tokens=2000, longest=0.3):
    """start() -> a server that has announced itself; one kill a number. Ends with the last server."""
    ticker = Ticker()
    ticker.start()
    server = start()
    try:
        for number in numbers:
            victim = VICTIMS[number % len(VICTIMS)]
            while True:
                begun = time.monotonic()
                opened = [
                    server.stream(prompt=f"{number} {place}", max_tokens=tokens, ignore_eos=True)
                    for place in range(streams)
                ]
                act = _kill_client if victim == "client" else _kill_process
                server, took, restart, faults = act(server, victim, opened, rng.uniform(0, longest), start)
                if not ticker.stood(begun):
                    break
                killed.stood += 1
            killed.ends[victim].append(took)
            killed.restarts += restart
            killed.faults += [f"{number} {victim}: {fault}" for fault in faults]
    finally:
        ticker.ends.set()
        server.end()


def _kill_process(server, victim, opened, delay, start):
    """(the next server, seconds until the streams had ended, [seconds until that one answered], faults)."""
    time.sleep(delay)
    begun, faults = time.monotonic(), []
    os.kill(server.engine_pid() if victim == "engine" else server.process.pid, signal.SIGKILL)
    for connection, received in opened:
        connection.settimeout(30)
        if b'"error"' not in rest(connection, received) and victim == "engine":
            faults.append("a stream ended without an error")
    took = time.monotonic() - begun
    code = server.process.wait(30)
    if code != (70 if victim == "engine" else -signal.SIGKILL):
        faults.append(f"exit code {code}")
    server.end()
    begun = time.monotonic()
    server = start(server.port)
    status = server.ask("/v1/completions", {"model": "default", "prompt": "Hi", "max_tokens": 2})[0]
    if status != 200:
        faults.append(f"the next server answered {status}")
    return server, took, [time.monotonic() - begun], faults


def _kill_client(server, victim, opened, delay, start):
    """As above, but the server stays: the client's blocks come back and nobody else's stream ends."""
    client, faults = _client(server, 2000), []
    time.sleep(delay)
    begun = time.monotonic()
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    until(lambda: server.ask("/health/ready")[2]["running"] == len(opened) or None)
    took = time.monotonic() - begun
    for connection, _ in opened:
        if not select.select([connection], [], [], 5)[0] or not connection.recv(65536):
            faults.append("a neighbour's stream ended")
        connection.close()
    until(lambda: used(server) == 0 or None)
    return server, took, [], faults


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
