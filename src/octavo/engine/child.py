"""The engine as a process of its own: `python -m octavo.engine.child FD [TURNS]`, FD one end of a socket pair.

TURNS: a file that engines share which have too few cores for all.

Loads what the first frame says, answers Ready, then serves until Close, a fault, or until the face is gone: the end of
the stream ends this process, whatever it is doing. Exit codes are those of errors.py.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time

from octavo.engine import precedence
from octavo.engine.loop import EngineLoop
from octavo.engine.parts import open_engine
from octavo.engine.turns import Alone, SharedTurns, Turns
from octavo.engine.wire import (
    Channel,
    Close,
    Command,
    Event,
    Fault,
    Open,
    Progress,
    Ready,
    Submit,
    Update,
    WireError,
)
from octavo.errors import EngineError, OctavoError
from octavo.grammar.structures import Structures

GONE = EngineError.exit_code
TURN_SECONDS = 120.0
PROGRESS_BYTES = 2**24  # between two reports


class Child:
    def __init__(self, channel: Channel[Command], turns: Turns) -> None:
        self._channel = channel
        self._turns = turns
        self._reported = 0
        self._fault: Fault | None = None

    def serve(self) -> int:
        """The exit code."""
        first = self._channel.receive()
        if not isinstance(first, Open):
            return GONE
        try:
            parts = open_engine(first.config, None, self._progress)
        except Exception as error:
            self._send(Fault.of(error))
            return error.exit_code if isinstance(error, OctavoError) else GONE
        self._send(Ready(parts.info, parts.stats()))
        depth = first.config.plans_outstanding
        scheduler, runner = parts.scheduler, parts.runner
        loop = EngineLoop(scheduler, runner, parts.stats, self._take, depth=depth, turns=self._turns)
        threading.Thread(target=self._read, args=(loop, parts.structures), daemon=True).start()
        threading.Thread(target=watch, args=(loop,), daemon=True).start()
        loop.run()
        return 0 if self._fault is None else GONE

    def _take(self, update: Update) -> None:
        self._fault = update.fault or self._fault
        self._send(update)

    def _progress(self, done: int, total: int) -> None:
        if done - self._reported >= PROGRESS_BYTES or done == total:
            self._reported = done
            self._send(Progress(done, total))

    def _send(self, event: Event) -> None:
        try:
            self._channel.send(event)
        except OSError:
            os._exit(GONE)

    def _read(self, loop: EngineLoop, structures: Structures) -> None:
        """Structures are compiled here, in order and away from the step."""
        try:
            while (command := self._channel.receive()) is not None:
                if isinstance(command, Submit):
                    with contextlib.suppress(OctavoError):  # the face has compiled it too; the sampler says so again
                        structures.ready(command.request)
                loop.post(command)
                if isinstance(command, Close):
                    return
        except (OSError, WireError):
            os._exit(GONE)
        os._exit(GONE)


def watch(loop: EngineLoop, limit: float = TURN_SECONDS) -> None:
    """Ends a process whose turn does not come back: what every thread was doing goes to stderr."""
    while True:
        time.sleep(min(limit / 4, 5.0))
        since = loop.busy_since
        if since is not None and time.monotonic() - since > limit:
            print(f"error: engine_hung: a step has run for more than {limit:g} seconds", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.stderr)
            os._exit(GONE)


def main() -> int:
    precedence.as_usual()
    channel: Channel[Command] = Channel(socket.socket(fileno=int(sys.argv[1])), Command)
    code = Child(channel, SharedTurns(int(sys.argv[2])) if len(sys.argv) > 2 else Alone()).serve()
    channel.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
