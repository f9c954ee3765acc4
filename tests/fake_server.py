"""A server process over a fake engine in a child process, as `octavo serve` starts one.

    python fake_server.py FOLDER PORT '{"machine": {}, "serve": {}, "engine": {}, "set": {"module:NAME": value}}'

`FakeServer` starts one and talks to it.
"""

import contextlib
import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

_ports = itertools.count()
HERE = Path(__file__).resolve().parent


class FakeServer:
    """address: without /v1. `announced` waits for the first line."""

    def __init__(
        self,
        folder,
        log,
        *,
        machine=None,
        real=False,
        serve=None,
        engine=None,
        constants=None,
        cores=None,
        profile=None,
        port=None,
    ):
        """real: the engine is the model's own. cores: those that it may use, as taskset writes them. profile: a file
        for cProfile's figures."""
        self.port = port or free_port()
        self.admin = (serve or {}).get("admin_socket", "")
        self.address = f"http://127.0.0.1:{self.port}"
        told = {
            "machine": None if real else machine or {},
            "serve": serve or {},
            "engine": engine or {},
            "set": constants or {},
        }
        self.log = open(log, "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                *(["taskset", "-c", cores] if cores else []),
                *(sys.executable, *(["-m", "cProfile", "-o", profile] if profile else [])),
                *(str(HERE / "fake_server.py"), str(folder), str(self.port), json.dumps(told)),
            ],
            env=os.environ | {"PYTHONPATH": f"{HERE.parent / 'src'}:{HERE}"},
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def announced(self):
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), self.said()
        return self

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def engine_pid(self):
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")  # whichever thread started it
        children = [pid for task in tasks for pid in task.read_text().split()]
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        return next(int(pid) for pid, command in commands.items() if b"fake_engine" in command or b".child" in command)

    def ask(self, path, body=None, timeout=20):
        """(status, headers, JSON)."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, content, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.headers, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.load(error)
        except OSError as error:
            error.add_note(f"exit code of the server: {self.process.poll()}; its log:")
            error.add_note(self.said())
            raise

    def stream(self, **fields):
        """A connection whose answer has begun, and what came so far."""
        body = json.dumps({"model": "default", "prompt": "Hi", "stream": True} | fields).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while b"data: " not in received:
            part = connection.recv(65536)
            assert part, received
            received += part
        return connection, received

    def operator(self, target, method="GET"):
        """(status, JSON) of the admin socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(self.admin)
            connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            head, _, body = rest(connection).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def quit(self):
        """By a signal, so that nothing is lost; the exit code."""
        self.signal()
        code = self.process.wait(60)
        self.end()
        return code

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def free_port():
    """Of this worker's own range, below those that the system gives away: nobody takes it before the server does."""
    first = 20000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", first + number % 1000))
            return first + number % 1000
    raise AssertionError("the count has no end")


def rest(connection, received=b""):
    """All that still comes, until the server closes."""
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
    return found


def main(folder, port, told):
    import fake_engine

    from octavo.config import EngineConfig
    from octavo.engine import executor
    from octavo.errors import OctavoError
    from octavo.server.app import serve
    from octavo.server.fleet import FleetConfig

    if told["machine"] is not None:
        executor.CHILD = fake_engine.child_command(fake_engine.Machine(**told["machine"]))
    for name, value in told["set"].items():
        module, _, constant = name.partition(":")
        setattr(importlib.import_module(module), constant, value)
    config = EngineConfig(model=folder, served_model_name="fake", **told["engine"])
    try:
        return serve([config], port=port, fleet=FleetConfig(aliases={}), **told["serve"])
    except OctavoError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
