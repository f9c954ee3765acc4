"""Health that cannot lie, over a server process whose engine is a child: loading, working, stuck, draining, gone."""

import os
import signal
import socket
import time

import pytest
from chain_model import write_chain
from fake_server import FakeServer, rest, until

from octavo.server.pulse import Pulse

BODY = {"model": "default", "prompt": "Hi", "max_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def start(folder, tmp_path):
    """start(options...) -> FakeServer."""
    started = []

    def begin(**options):
        started.append(FakeServer(folder, tmp_path / f"log{len(started)}", **options))
        return started[-1]

    yield begin
    for server in started:
        server.end()


def listens(server):
    try:
        return server.ask("/health/live")[0] == 200
    except OSError:
        return False


def test_a_server_that_loads_says_how_far(start):
    server = start(machine={"load_seconds": 3.0})
    until(lambda: listens(server))
    seen = []
    while (answer := server.ask("/health/ready"))[0] == 503:
        assert answer[2]["status"] == "loading" and answer[1]["retry-after"]
        seen.append(answer[2]["progress"])
        time.sleep(0.02)  # as a probe would: a thousand a second take the load's own time on two cores
        if len(seen) == 1:
            status, headers, refused = server.ask("/v1/completions", BODY)
            assert status == 503 and headers["retry-after"] and "is being loaded" in refused["error"]["message"]
            assert server.ask("/v1/models")[2]["data"][0]["state"] == "loading"
    assert seen == sorted(seen) and len(set(seen)) > 3 and 0 <= seen[0] < seen[-1] <= 1
    server.announced()
    assert server.ask("/health/ready")[2] == {
        "status": "ready",
        "model": "fake",
        "running": 0,
        "waiting": 0,
        "models": {"fake": "ready"},
    }
    assert server.ask("/v1/completions", BODY)[0] == 200


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_a_server_stands_back_behind_its_engine(start):
    server = start().announced()
    policies = [os.sched_getscheduler(pid) for pid in (server.process.pid, server.engine_pid())]
    assert policies == [os.SCHED_BATCH, os.SCHED_OTHER]
    assert server.ask("/v1/completions", BODY)[0] == 200


def test_a_signal_ends_a_load(start):
    server = start(machine={"load_seconds": 600.0})
    until(lambda: listens(server))
    server.signal()
    assert server.process.wait(60) == 0


def test_a_step_that_hangs_ends_the_server_with_the_stacks(start):
    """By the child's watchdog: the stream gets its error, the process a code that is not 0, the log says where."""
    server = start(machine={"hang_at": 5, "turn_seconds": 1.0}).announced()
    connection, received = server.stream(max_tokens=100)
    text = rest(connection, received)
    assert b'"error"' in text and b"[DONE]" not in text
    assert server.process.wait(60) == 70
    said = server.said()
    assert "engine_hung" in said and "fake_engine.py" in said and "engine_dead" in said


def test_an_engine_without_a_step_is_not_ready_and_then_ended(start):
    """A process that was stopped says nothing, and its watchdog stands with it."""
    constants = {"octavo.server.state:STALL_SECONDS": 0.5, "octavo.server.pulse:HUNG_SECONDS": 3.0}
    constants |= {"octavo.engine.executor:CLOSE_SECONDS": 0.5}
    server = start(machine={"step_seconds": 0.01}, constants=constants).announced()
    connection, received = server.stream(max_tokens=200)
    assert server.ask("/health/ready")[0] == 200
    os.kill(server.engine_pid(), signal.SIGSTOP)
    status, _, body = until(lambda: (answer := server.ask("/health/ready"))[0] == 503 and answer)
    assert "has work and took no step" in body["reason"] and status == 503
    assert server.ask("/health/live")[0] == 200
    assert b'"error"' in rest(connection, received)
    assert server.process.wait(60) == 70 and "engine_hung" in server.said()


def test_a_server_that_drains_says_so_until_the_last_stream_ends(start):
    """Numbers that are none end one request before: 500, and nobody else notices."""
    server = start(machine={"step_seconds": 0.02, "not_finite": 66}).announced()
    connection, received = server.stream(prompt=[67, 68], max_tokens=100)
    status, _, body = server.ask("/v1/completions", BODY | {"prompt": [66, 67]})
    assert status == 500 and "not finite" in body["error"]["message"]
    server.signal()
    status, headers, body = until(lambda: (answer := server.ask("/health/ready"))[0] == 503 and answer)
    assert "shutting down" in body["reason"] and headers["retry-after"]
    status, headers, body = server.ask("/v1/completions", BODY)
    assert status == 503 and body["error"]["code"] == "not_ready" and headers["retry-after"]
    assert server.ask("/health/live")[0] == 200
    assert rest(connection, received).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert server.process.wait(60) == 0


class TestOperator:
    def test_lists_aborts_and_drains(self, start, tmp_path):
        path = tmp_path / "operator"
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(str(path))
        stale.close()
        server = start(machine={"step_seconds": 0.01}, serve={"admin_socket": str(path)}).announced()
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.operator("/requests") == (200, {"requests": []})
        idle = server.operator("/engines")[1]["engines"]["fake"]
        assert idle["blocks_free"] == idle["blocks_total"] > 0
        connection, received = server.stream(max_tokens=200)
        _, body = server.operator("/requests")
        (running,) = body["requests"]
        assert running["path"] == "/v1/completions" and running["seconds"] >= 0
        assert server.operator("/models/fake/unload", "POST")[0] == 409
        assert server.operator(f"/requests/{running['id']}/abort", "POST")[0] == 200
        while b"aborted by the operator" not in received:
            received += connection.recv(65536)
        connection.close()
        until(lambda: server.ask("/health/ready")[2]["running"] == 0)
        assert server.operator("/requests/none/abort", "POST")[0] == 404
        assert server.operator("/models/none/unload", "POST")[0] == 404
        assert server.operator("/models/fake/unload", "POST")[0] == 200
        assert server.ask("/v1/completions", BODY)[0] == 200  # it is loaded again
        for route in ("/requests", "/drain"):
            assert server.ask(route)[0] == 404  # nothing of it where clients are
        assert server.operator("/drain", "POST")[0] == 200
        assert server.process.wait(60) == 0 and not path.exists()

    def test_a_path_that_is_taken(self, start, tmp_path):
        (tmp_path / "file").write_text("mine")
        server = start(serve={"admin_socket": str(tmp_path / "file")})
        assert server.process.wait(60) == 69 and "cannot_bind" in server.said()
        assert (tmp_path / "file").read_text() == "mine"


class Silent:
    """An engine of which a test says everything."""

    def __init__(self):
        self.steps, self.unfinished = 0, 0

    def stats(self):
        return self


def test_the_pulse_counts_silence_with_work_alone():
    now, one, other = [0.0], Silent(), Silent()
    pulse = Pulse(lambda: now[0])

    def after(seconds):
        now[0] += seconds
        pulse.look([("one", one), ("other", other)])
        return pulse.silence()

    assert after(100) == (0.0, "")
    one.unfinished = 1
    assert after(10) == (0.0, "one")
    assert after(10) == (10.0, "one")
    one.steps += 1
    assert after(10) == (0.0, "one")
    other.unfinished = 1
    one.steps += 1
    after(5)
    one.steps += 1
    assert after(7) == (7.0, "other")
    other.unfinished = one.unfinished = 0
    assert after(50) == (0.0, "")
