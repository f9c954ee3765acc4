"""Connections that send slowly, nothing or nonsense: each ends by itself, and others notice nothing."""

import asyncio
import json
import socket
import time

import pytest
import uvicorn
from asking import until
from scripted import ANSWER

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.parting import Parting
from octavo.server.protocol import BoundedProtocol

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "default", "prompt": "Hi"}).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture
def config():
    return ServerConfig(port=0, header_seconds=0.3, body_seconds=0.6)


@pytest.fixture
def dial(live):
    """dial() -> a connection to the server."""
    opened = []

    def connect():
        host, port = live.removeprefix("http://").removesuffix("/v1").split(":")
        opened.append(socket.create_connection((host, int(port)), timeout=10))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def answer(connection):
    """One answer, headers and body; what belongs to the next one is left."""
    received, size = b"", None
    while size is None or len(received) < size:
        part = connection.recv(1 if size is None else size - len(received))
        assert part, received
        received += part
        if size is None and received.endswith(b"\r\n\r\n"):
            length = next(line for line in received.lower().split(b"\r\n") if line.startswith(b"content-length"))
            size = len(received) + int(length.split(b":")[1])
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def closed(connection):
    return connection.recv(65536) == b""


@pytest.mark.parametrize("sent", [b"", b"P", HEAD, HEAD + b"X-Slow: "], ids=["nothing", "a byte", "no end", "half"])
def test_a_request_that_does_not_come_is_ended(dial, sent):
    connection = dial()
    connection.sendall(sent)
    status, body = answer(connection)
    assert status == 408 and json.loads(body)["error"]["code"] == "request_timeout"
    assert closed(connection)


def test_a_byte_now_and_then_does_not_keep_a_connection(dial):
    """The time is that of the whole head, not of a pause."""
    connection, began = dial(), time.monotonic()
    connection.setblocking(False)
    received = b""
    for byte in HEAD * 4:
        connection.send(bytes([byte]))
        time.sleep(0.02)
        try:
            received += connection.recv(65536)
        except BlockingIOError:
            continue
        break
    assert b" 408 " in received and time.monotonic() - began < 5


def test_the_next_request_of_a_connection_has_the_same_time(dial):
    connection = dial()
    for _ in range(2):
        connection.sendall(WHOLE)
        assert answer(connection)[0] == 200
        time.sleep(0.4)  # between requests a connection may rest for longer
    connection.sendall(WHOLE)
    assert answer(connection)[0] == 200
    connection.sendall(HEAD)
    assert answer(connection)[0] == 408 and closed(connection)


def test_headers_without_end_are_cut(dial):
    """At the limit, not when memory is gone."""
    connection = dial()
    connection.sendall(HEAD)
    for _ in range(9):
        connection.sendall(b"X-More: " + b"y" * 2000 + b"\r\n")
    assert answer(connection)[0] == 431


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"SSH-2.0-x\r\n", b"\x00" * 64, b"GET / HTTP/9.9\r\n\r\n", b"\xff" * 3000],
    ids=["tls", "ssh", "zeros", "version", "bytes"],
)
def test_what_is_no_http_is_refused(dial, junk):
    connection = dial()
    connection.sendall(junk)
    status, body = answer(connection)
    assert status == 400 and json.loads(body)["error"]["code"] == "invalid_http"
    connection.sendall(junk * 100)
    assert closed(connection)


@pytest.mark.parametrize("size", [100_000, 9 << 20])
@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_a_refusal_reaches_who_is_still_sending(dial, kind, size):
    """A body that comes after the answer, on a connection that ends with it: no reset takes the answer away."""
    connection = dial()
    head = b"POST /v1/none HTTP/1.1" if size < 1 << 20 else b"POST /v1/completions HTTP/1.1"
    fields = b"Host: localhost\r\nConnection: close\r\nContent-Type: %b\r\nContent-Length: %d" % (kind, size)
    connection.sendall(head + b"\r\n" + fields + b"\r\n\r\n")
    connection.recv(1, socket.MSG_PEEK)  # the answer is there
    for _ in range(10):
        time.sleep(0.01)
        connection.sendall(b"x" * (size // 10))
    status, body = answer(connection)
    assert status == (404 if size < 1 << 20 else 413 if kind == b"application/json" else 415)
    assert json.loads(body)["error"]["message"] and closed(connection)


def test_a_refused_body_has_its_time(dial):
    """On a connection that could go on: it does where the body comes, and ends where that drips."""
    late, slow = dial(), dial()
    head = HEAD.replace(b"application/json", b"text/plain") + b"Content-Length: 20\r\n\r\n"
    for connection in (late, slow):
        connection.sendall(head)
        assert answer(connection)[0] == 415
    late.sendall(b"x" * 20 + WHOLE)
    assert answer(late)[0] == 200
    began, cut = time.monotonic(), False
    while not cut and time.monotonic() - began < 10:
        time.sleep(0.05)
        try:
            slow.send(b"x")
            cut = slow.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            continue
        except ConnectionError:
            cut = True
    assert cut and time.monotonic() - began < 5


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
CHUNKED = HEAD + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("sent", [WHOLE.replace(b"Content-Length", UPGRADE + b"Content-Length"), CHUNKED])
@pytest.mark.parametrize("part", [10**6, 100, 1])
def test_an_offer_of_another_protocol_is_not_taken_up(dial, sent, part, caplog):
    """As some clients make it with every first request; its body is read, and the connection goes on."""
    connection = dial()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(2):
        for place in range(0, len(sent), part):
            connection.sendall(sent[place : place + part])
        status, body = answer(connection)
        assert status == 200 and json.loads(body)["choices"][0]["text"] == ANSWER
        connection.sendall(WHOLE + WHOLE)
        assert (answer(connection)[0], answer(connection)[0]) == (200, 200)
    assert "pgrade" not in caplog.text


def test_two_offers_in_a_row(dial):
    """Without bodies, and in one packet."""
    connection = dial()
    connection.sendall((b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + b"\r\n") * 2)
    assert (answer(connection)[0], answer(connection)[0]) == (200, 200)


@pytest.mark.parametrize(
    ("target", "status"),
    [(b"/", 400), (b"http://localhost", 200), (b"http://[::1]:99", 200), (b"http://evil", 400), (b"//x", 400)],
)
def test_the_host_of_a_target_goes_before_the_field(dial, target, status):
    field = b"evil" if b"localhost" in target or b"1" in target or target == b"/" else b"localhost"
    path = b"" if target == b"/" else target
    connection = dial()
    connection.sendall(b"GET %b/health HTTP/1.1\r\nHost: %b\r\n\r\n" % (path, field))
    assert answer(connection)[0] == (404 if target == b"//x" else status)


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"2\r\n{}x\r\n"])
def test_a_body_that_is_no_chunk_is_answered(dial, llm, chunk):
    connection = dial()
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
    status, body = answer(connection)
    assert status == 400 and json.loads(body)["error"]["code"] == "invalid_http" and llm.opened == 0


class Wire(asyncio.Transport):
    """A connection of which a test says everything."""

    def __init__(self):
        super().__init__()
        self.written, self.ended, self.closed, self.waiting, self.paused = b"", False, False, 0, False

    def write(self, data):
        assert not self.ended
        self.written += data

    def write_eof(self):
        self.ended = True

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.waiting

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False


class TestParting:
    def test_is_at_once_where_nobody_sends_or_reads(self):
        wire = Wire()
        Parting(wire, None, lambda: False, 1.0).close()
        assert wire.closed and not wire.ended

    async def test_waits_for_who_still_sends(self):
        wire = Wire()
        parting = Parting(wire, asyncio.get_running_loop(), lambda: True, 0.05)
        parting.pause_reading()
        parting.close()
        parting.write(b"late")
        parting.pause_reading()
        assert wire.ended and not wire.closed and parting.is_closing() and not (wire.written or wire.paused)
        await until(lambda: wire.closed)

    async def test_does_not_wait_twice(self):
        wire = Wire()
        parting = Parting(wire, asyncio.get_running_loop(), lambda: True, 600.0)
        parting.close()
        parting.close()
        assert wire.closed

    async def test_ends_a_reader_that_does_not_read(self):
        """Its last bytes would wait for ever in a connection that is closed."""
        loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
        transport, protocol = await loop.create_connection(Ended, sock=ours)
        transport.write(b"x" * (8 << 20))
        Parting(transport, loop, lambda: False, 0.05).close()
        await until(lambda: protocol.ended)
        theirs.close()


class Ended(asyncio.Protocol):
    ended = False

    def connection_lost(self, exc):
        self.ended = True


async def test_no_connection_rests_without_a_timer(llm, config):
    """Also one whose refused body came later than its answer."""
    settings = uvicorn.Config(create_app(llm, config), lifespan="off")
    protocol = BoundedProtocol(config, config=settings, server_state=uvicorn.server.ServerState(), app_state={})
    wire = Wire()
    protocol.connection_made(wire)
    assert protocol._deadline is not None
    protocol.data_received(WHOLE[:-5].replace(b"application/json", b"text/plain"))
    await until(lambda: protocol.cycle.response_complete)
    assert b" 415 " in wire.written and protocol._deadline is not None and not protocol.timeout_keep_alive_task
    protocol.data_received(WHOLE[-5:])
    assert protocol._deadline is None and protocol.timeout_keep_alive_task is not None
    protocol.data_received(b"\r\n")
    assert protocol._deadline is not None or protocol.timeout_keep_alive_task is not None
    protocol.connection_lost(None)
    assert protocol._deadline is None and protocol.timeout_keep_alive_task is None


def test_a_scan_and_half_open_connections_cost_others_nothing(dial, llm):
    """200 connections that say nothing, 50 that break off, one that works meanwhile."""
    silent = [dial() for _ in range(200)]
    for place in range(50):
        connection = dial()
        connection.sendall(WHOLE[: 1 + place * 2])
        connection.close()
    working = dial()
    for _ in range(5):
        working.sendall(WHOLE)
        status, body = answer(working)
        assert status == 200 and json.loads(body)["choices"][0]["text"] == ANSWER
    for connection in silent:
        assert answer(connection)[0] == 408 and closed(connection)
    assert llm.opened == llm.closed == 5


@pytest.mark.parametrize(
    "lengths",
    [b"Content-Length: 2\r\nContent-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 1x\r\n"],
)
def test_lengths_that_contradict(dial, lengths):
    connection = dial()
    connection.sendall(HEAD + lengths + b"\r\n{}")
    assert connection.recv(65536).startswith(b"HTTP/1.1 4")
