"""An OpenAI endpoint that answers as it is told: (seconds or an event to wait for, bytes to write) after another.

python tests/load/fake_endpoint.py FIRST GAP PIECES      serves until it is killed; prints its port
"""

import asyncio
import json
import sys

import httptools

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
CLOSE = None  # in place of bytes: the connection breaks


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value) -> bytes:
    return chunk(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


def whole(status: int, value) -> list:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return [(0, head.encode() + body)]


def answer(pieces: int, first: float = 0.0, gap: float = 0.0, prompt: int = 7) -> list:
    """A chat that streams well."""
    piece = event({"choices": [{"index": 0, "delta": {"content": " word"}}]})
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    usage = event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": pieces}})
    script = [(0, HEAD + event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))]
    script += [(first if place == 0 else gap, piece) for place in range(pieces)]
    return [*script, (0, last + usage + chunk(b"data: [DONE]\n\n") + END)]


class Endpoint:
    """script(body) -> what answers it. asked: every body, in order of arrival."""

    def __init__(self, script):
        self.script = script
        self.asked = []
        self.headers = []
        self.connections = 0

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=4096)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    def reply(self, path, body):
        if path == "/v1/models":
            return whole(200, {"object": "list", "data": [{"id": "fake"}]})
        if not path.startswith("/v1/"):
            return whole(404, {"error": {"code": "not_found", "message": "no such path"}})
        self.asked.append(body)
        if not body.get("stream"):
            return whole(200, {"choices": []})
        return self.script(body)


class _Connection(asyncio.Protocol):
    def __init__(self, endpoint):
        self._endpoint = endpoint
        endpoint.connections += 1

    def connection_made(self, transport):
        self._transport = transport
        self._begin()

    def data_received(self, data):
        self._parser.feed_data(data)

    def _begin(self):
        self._parser, self._body, self._path, self._fields = httptools.HttpRequestParser(self), b"", "", {}

    def on_url(self, url):
        self._path = url.decode()

    def on_header(self, name, value):
        self._fields[name.decode().lower()] = value.decode()

    def on_body(self, data):
        self._body += data

    def on_message_complete(self):
        self._endpoint.headers.append(self._fields)
        body = json.loads(self._body) if self._body else {}
        self._play(self._endpoint.reply(self._path, body), 0)

    def _play(self, script, place):
        """Writes up to the next wait."""
        while place < len(script):
            wait, data = script[place]
            rest = [(0, data), *script[place + 1 :]]
            if isinstance(wait, asyncio.Event):
                self._waiting = asyncio.create_task(self._play_after(wait, rest))
                return
            if wait:
                asyncio.get_running_loop().call_later(wait, self._play, rest, 0)
                return
            if data is CLOSE:
                self._transport.abort()
                return
            self._transport.write(data)
            place += 1
        self._begin()

    async def _play_after(self, event, script):
        await event.wait()
        self._play(script, 0)


async def _serve(first: float, gap: float, pieces: int) -> None:
    script = answer(pieces, first, gap)
    async with Endpoint(lambda body: script) as endpoint:
        endpoint.asked = _Nothing()
        print(endpoint.url.rpartition(":")[2], flush=True)
        await asyncio.Event().wait()


class _Nothing:
    def append(self, body):
        pass


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
