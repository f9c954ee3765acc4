"""The life of the server process: the listening socket, signals, draining, and the end of the engine.

The first SIGINT or SIGTERM drains: no new work, what runs may end, and who asks is told so. A second one, or the
drain's deadline, cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from octavo.engine import precedence
from octavo.errors import EngineError, OctavoError, ResourceError
from octavo.server.config import ServerConfig
from octavo.server.port import Living
from octavo.server.protocol import BoundedProtocol
from octavo.server.state import ServerState

EXPECTED = ("Cancel %s running task", "Invalid HTTP request")  # openings of what uvicorn says of ends and of scans
_log = logging.getLogger("octavo.server")
Work = Callable[[], Coroutine[None, None, None]]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_SECONDS = 0.25  # between two looks at the engine
FAREWELL_SECONDS = 5.0  # for the last words of streams whose engine has stopped


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
        """The first signal lets requests end, while probes and newcomers are told; `_serve` goes on from there."""
        if self.state.draining:
            self.stop(0.0)
        self.state.draining = True

    def stop(self, seconds: float) -> None:
        """Listens no more; what is open has this long, rounded down, to be sent."""
        self.state.draining = self.should_exit = True
        self.force_exit = self.force_exit or seconds <= 0
        self.config.timeout_graceful_shutdown = int(max(seconds, 0.0))


class Quiet(uvicorn.Server):
    """A second server of the process, which leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    app: ASGIApp,
    served: Living,
    config: ServerConfig,
    state: ServerState,
    listener: socket.socket,
    announce: Callable[[str], None],
    opened: Work | None = None,
    beside: Sequence[Work] = (),
) -> int:
    """Serves until a signal (0) or until the engine stops, whose error it raises. Closes what is served.

    opened: what has to be there before anything is announced; health is answered meanwhile. beside: what else runs in
    the event loop, for as long as it does.
    """
    precedence.stand_back()
    logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith(EXPECTED))
    server = Server(_settings(app, config), state)

    async def announced() -> None:
        if opened is not None:
            await opened()
        while not server.started:
            await asyncio.sleep(0.01)
        if not state.draining:
            announce(f"listening on {address(listener)}")

    try:
        asyncio.run(_serve(server, served, config, listener, (announced, *beside)))
    finally:
        served.close()
    if state.engine_error is not None:
        raise state.engine_error
    return 0


async def serve_operator(app: ASGIApp, config: ServerConfig, listener: socket.socket) -> None:
    """The operator's socket, until it is cancelled."""
    await Quiet(_settings(app, config)).serve(sockets=[listener])


def _settings(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedProtocol.within(config),  # type: ignore[arg-type]  # what uvicorn calls to make one
        loop="asyncio",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,  # the logbook hears all
        server_header=False,
        timeout_keep_alive=75,
    )


async def _serve(
    server: Server, served: Living, config: ServerConfig, listener: socket.socket, beside: Sequence[Work]
) -> None:
    works = [asyncio.create_task(_watched(work, server.state)) for work in beside]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    state, deadline = server.state, math.inf
    while not serving.done():
        await asyncio.wait((serving,), timeout=WATCH_SECONDS)
        now = time.monotonic()
        if state.draining and deadline == math.inf:
            deadline = now + config.drain_seconds
        if server.should_exit:
            continue
        if state.engine_error is None:
            state.engine_error = served.error
        if state.engine_error is not None:
            server.stop(FAREWELL_SECONDS)
        elif state.draining and (not state.open or now > deadline):
            server.stop(max(deadline - now, 0.0))
    for work in works:
        work.cancel()
    await serving


async def _watched(work: Work, state: ServerState) -> None:
    """What it raises ends the server."""
    try:
        await work()
    except OctavoError as error:
        state.engine_error = error
    except Exception as error:
        _log.exception("the server has stopped")
        state.engine_error = EngineError(f"{type(error).__name__}: {error}")
