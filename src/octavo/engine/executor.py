"""Where the engine lives: in a thread of this process (ThreadEngine) or in a child process (ProcessEngine).

Both own the table of sinks; the scheduler and the runner are the loop's. Whatever ends an engine ends every stream:
after a fault or the child's death, each open sink gets one error delta and `error` says why.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Protocol

from octavo.config import EngineConfig
from octavo.drafters.port import Drafter
from octavo.engine.loop import EngineLoop
from octavo.engine.parts import open_engine
from octavo.engine.port import Engine, EngineStats, ModelInfo, Sink
from octavo.engine.wire import (
    Abort,
    Channel,
    Close,
    Command,
    Event,
    Fault,
    Finish,
    Open,
    Progress,
    Ready,
    Submit,
    Update,
)
from octavo.errors import EngineError, OctavoError, RequestError
from octavo.grammar.structures import Structures
from octavo.request import Request, TokenDelta

ProgressHook = Callable[[int, int], None]
SWITCH_INTERVAL = 0.0005  # seconds that a thread of the face may hold the interpreter while the step waits for it
CLOSE_SECONDS = 10.0  # then the child is killed
CHILD = ("-m", "octavo.engine.child")


def no_progress(done: int, total: int) -> None:
    return


class SinkTable:
    """request id -> sink. Every sink that was put in gets exactly one last delta, from `deliver` or from `fail`."""

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self._lock = threading.Lock()
        self.error: OctavoError | None = None  # the first cause, latched

    def __len__(self) -> int:
        return len(self._sinks)

    def put(self, request_id: str, sink: Sink) -> None:
        with self._lock:
            if self.error is not None:
                raise EngineError(self.error.message, code=self.error.code)
            if request_id in self._sinks:
                raise RequestError(f"a request with the id {request_id} is running", param="request_id")
            self._sinks[request_id] = sink

    def deliver(self, deltas: tuple[TokenDelta, ...]) -> None:
        sinks = self._sinks
        with self._lock:
            found = [
                sinks.get(delta.request_id) if delta.finish_reason is None else sinks.pop(delta.request_id, None)
                for delta in deltas
            ]
        for sink, delta in zip(found, deltas, strict=True):
            if sink is not None:
                sink(delta)

    def fail(self, error: OctavoError) -> None:
        """Latches the cause and ends every open stream with it."""
        with self._lock:
            self.error = self.error or error
            left, self._sinks = self._sinks, {}
        for request_id, sink in left.items():
            sink(TokenDelta(request_id, (), finish_reason="error", stop_reason=error.message))


class ThreadEngine:
    """The engine in a thread of this process. The caller's thread loads; `threads` of the config compute."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        drafter: Drafter | None = None,
        progress: ProgressHook = no_progress,
        structures: Structures | None = None,
    ) -> None:
        parts = open_engine(config, drafter, progress, structures)
        self.info: ModelInfo = parts.info
        self._structures = parts.structures
        self._sinks = SinkTable()
        self._stats = parts.stats()
        self._loop = EngineLoop(parts.scheduler, parts.runner, parts.stats, self._take, depth=config.plans_outstanding)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def error(self) -> OctavoError | None:
        """Why the engine has stopped; None while it serves."""
        return self._sinks.error

    @property
    def unfinished(self) -> int:
        return len(self._sinks)

    def submit(self, request: Request, sink: Sink) -> None:
        self._structures.ready(request)
        self._sinks.put(request.id, sink)
        self._loop.post(Submit(request))

    def abort(self, request_id: str) -> None:
        self._loop.post(Abort(request_id))

    def finish(self, request_id: str, at_token: int, stop_reason: str) -> None:
        self._loop.post(Finish(request_id, at_token, stop_reason))

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        atexit.unregister(self.close)
        self._loop.post(Close())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        """Whatever ends the loop, no stream stays open."""
        try:
            self._loop.run()
        finally:
            self._sinks.fail(EngineError("the engine is closed", code="engine_closed"))

    def _take(self, update: Update) -> None:
        self._stats = update.stats or self._stats
        self._sinks.deliver(update.deltas)
        if update.fault is not None:
            self._sinks.fail(update.fault.error())


class ProcessEngine:
    """The engine in a child process, over a socket pair. The child's death is seen as the end of its stream.

    Callers never wait for the child: a thread of its own writes, so a child that hangs stops no event loop. turns: a
    file that engines share which have too few cores for all.
    """

    def __init__(
        self, config: EngineConfig, *, progress: ProgressHook = no_progress, turns: IO[bytes] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = [theirs.fileno()] if turns is None else [theirs.fileno(), turns.fileno()]
            self._child = subprocess.Popen(
                [sys.executable, *CHILD, *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal is the face's to handle
            )
        self._channel: Channel[Event] = Channel(ours, Event)
        self._sinks = SinkTable()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = False
        self.info: ModelInfo
        self._writer = threading.Thread(target=self._write, name="octavo-engine-writer", daemon=True)
        self._writer.start()
        try:
            self._send(Open(config))
            self._await_ready(progress)
        except BaseException:
            self._end_child()
            raise
        self._reader = threading.Thread(target=self._read, name="octavo-engine-reader", daemon=True)
        self._reader.start()

    @property
    def error(self) -> OctavoError | None:
        """Why the engine has stopped; None while it serves."""
        return self._sinks.error

    @property
    def unfinished(self) -> int:
        return len(self._sinks)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """Of the child; None while it runs."""
        return self._child.poll()

    def submit(self, request: Request, sink: Sink) -> None:
        frame = self._channel.pack(Submit(request))
        self._sinks.put(request.id, sink)
        self._outbox.put(frame)

    def abort(self, request_id: str) -> None:
        self._send(Abort(request_id))

    def finish(self, request_id: str, at_token: int, stop_reason: str) -> None:
        self._send(Finish(request_id, at_token, stop_reason))

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        self._closing = True
        self._send(Close())
        self._end_child()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    # ---- inside
    def _send(self, command: Command) -> None:
        self._outbox.put(self._channel.pack(command))

    def _write(self) -> None:
        """A child that is gone is the reader's to report: it sees the end of the stream."""
        with contextlib.suppress(OSError):
            while (frame := self._outbox.get()) is not None:
                self._channel.write(frame)

    def _await_ready(self, progress: ProgressHook) -> None:
        while True:
            match self._channel.receive():
                case Progress(done, total):
                    progress(done, total)
                case Ready(info, stats):
                    self.info, self._stats = info, stats
                    return
                case Fault() as fault:
                    raise fault.error()
                case None:
                    raise EngineError(f"the engine process ended while loading, {self._ending()}")

    def _read(self) -> None:
        """Until the child closes its end: by our Close, by a fault it reports, or by dying."""
        try:
            while (event := self._channel.receive()) is not None:
                if isinstance(event, Update):
                    self._stats = event.stats or self._stats
                    self._sinks.deliver(event.deltas)
                    if event.fault is not None:
                        self._sinks.fail(event.fault.error())
        except (OSError, EngineError):
            self._sinks.fail(EngineError("the engine process broke off in the middle of a message"))
        if self._closing:
            self._sinks.fail(EngineError("the engine is closed", code="engine_closed"))
        else:
            self._sinks.fail(EngineError(f"the engine process died, {self._ending()}", code="engine_dead"))

    def _ending(self) -> str:
        try:
            code = self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            return "its exit code is not known"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _end_child(self) -> None:
        try:
            self._child.wait(CLOSE_SECONDS if self._closing else 0.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._outbox.put(None)
        self._channel.close()


class LiveEngine(Engine, Protocol):
    """The engine's port with the cause of its end, and how many of its requests have not ended."""

    @property
    def error(self) -> OctavoError | None: ...
    @property
    def unfinished(self) -> int: ...
