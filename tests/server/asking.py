"""Requests to an ASGI application in the running event loop: several at once, any of which may leave."""

import asyncio
import json


class Asked:
    """What came back so far. `leave` is what the server sees of a client that closes its connection."""

    def __init__(self, app, method, path, body=None, headers=(), query=""):
        self.status, self.headers, self.body, self.done = 0, {}, bytearray(), False
        self._gone = asyncio.Event()
        content = b"" if body is None else json.dumps(body).encode()
        self._sent = [{"type": "http.request", "body": content, "more_body": False}]
        head = {"host": "localhost", "content-type": "application/json", **dict(headers)}
        pairs = [(name.encode(), value.encode()) for name, value in head.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs, "state": {}}
        scope |= {"query_string": query.encode(), "scheme": "http", "server": ("127.0.0.1", 80), "root_path": ""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    def leave(self):
        self._gone.set()

    @property
    def json(self):
        return json.loads(bytes(self.body))

    async def _receive(self):
        if self._sent:
            return self._sent.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]
            self.done = not message.get("more_body", False)


async def until(condition, seconds=20.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
