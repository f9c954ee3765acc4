"""The life of the server process: the listening socket, signals, draining, and the end of the engine.

The first SIGINT or SIGTERM drains: no new work, what runs may end. A second one, or the drain's deadline, cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from octavo.errors import ResourceError
from octavo.server.config import ServerConfig
from octavo.server.port import Living
from octavo.server.protocol import BoundedProtocol
from octavo.server.state import ServerState

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_SECONDS = 0.25  # between two looks at the engine


def bind(config: ServerConfig) -> socket.socket:
    """The listening socket. Raises ResourceError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ResourceError(f"cannot listen on {config.host}:{config.port}: {reason}", code="cannot_bind") from None
    return listener


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


class Server(uvicorn.Server):
    """uvicorn with our signals: any second one is immediate, and none is raised again at the end."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self.state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop(force=self.should_exit)

    def stop(self, *, force: bool = False) -> None:
        self.state.draining = True
        self.should_exit = True
        self.force_exit = self.force_exit or force


def run(
    app: ASGIApp,
    served: Living,
    config: ServerConfig,
    state: ServerState,
    listener: socket.socket,
    announce: Callable[[str], None],
) -> int:
    """Serves until a signal (0) or until the engine stops, whose error it raises. Closes what is served."""
    settings = uvicorn.Config(
        app,
        http=BoundedProtocol.within(config),  # type: ignore[arg-type]  # what uvicorn calls to make one
        loop="asyncio",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,  # the logbook hears all
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(config.drain_seconds),
    )
    server = Server(settings, state)
    try:
        asyncio.run(_serve(server, served, listener, announce))
    finally:
        served.close()
    if state.engine_error is not None:
        raise state.engine_error
    return 0


async def _serve(server: Server, served: Living, listener: socket.socket, announce: Callable[[str], None]) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if not serving.done():
        announce(f"listening on {address(listener)}")
    while not serving.done():
        await asyncio.wait((serving,), timeout=WATCH_SECONDS)
        if served.error is not None and not server.should_exit:
            server.state.engine_error = served.error
            server.stop()
    await serving
