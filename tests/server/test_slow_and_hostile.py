"""Connections that send slowly, nothing or nonsense: each ends by itself, and others notice nothing."""

import json
import socket
import time

import pytest
from scripted import ANSWER

from octavo.server.config import ServerConfig

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "default", "prompt": "Hi"}).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture
def config():
    return ServerConfig(port=0, header_seconds=0.3)


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
    """One answer, headers and body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < int(size.split(b":")[1]):
        body += connection.recv(65536)
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
    received = b""
    while part := connection.recv(65536):
        received += part
    assert received.startswith(b"HTTP/1.1 400 ")


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
