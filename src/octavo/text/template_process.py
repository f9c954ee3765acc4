"""The child process of one chat template, seen from the parent: frames to it and from it, a clock, an end.

Not thread-safe. template_worker.py is the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from octavo.errors import ResourceError

START_SECONDS = 20.0  # for the interpreter to come up on a busy machine
_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateFault(Exception):
    """The process was out of time, or died."""


class TemplateProcess:
    """Answers come in the order of requests. After a fault, and after any other exception, it can only be killed."""

    def __init__(self, start: dict[str, Any]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is not for it; it ends with its input
            )
        except OSError as error:
            raise ResourceError(f"the chat template's process cannot start: {error.strerror}") from None
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._unsent = bytearray()
        self._received = bytearray()
        self._ready = False
        self.post(start)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def post(self, request: dict[str, Any]) -> None:
        """Sends what the pipe takes; the rest goes out while an answer is awaited."""
        self._unsent += _frame(request)
        with contextlib.suppress(OSError):
            self._write()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer. The clock starts when the interpreter is up. Raises TemplateFault."""
        if not self._ready:
            self._receive(START_SECONDS)
            self._ready = True
        return self._receive(seconds)

    def _write(self) -> None:
        del self._unsent[: os.write(self._stdin, self._unsent[: 1 << 16])]

    def _receive(self, seconds: float) -> dict[str, Any]:
        """One frame, while the unsent bytes go out."""
        deadline = time.monotonic() + seconds
        while (end := self._frame_end()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TemplateFault(f"no result after {seconds:g} s")
            poll = select.poll()  # knows descriptors beyond 1,023
            poll.register(self._stdout, select.POLLIN)
            if self._unsent:
                poll.register(self._stdin, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            try:
                if self._stdin in ready:
                    self._write()
                data = os.read(self._stdout, 1 << 16) if self._stdout in ready else None
            except OSError:
                data = b""
            if data == b"":
                raise TemplateFault("its process ended")
            self._received += data or b""
        reply: dict[str, Any] = json.loads(self._received[4:end])
        del self._received[:end]
        return reply

    def _frame_end(self) -> int | None:
        """Where the first received frame ends, None while it is not whole."""
        if len(self._received) < 4:
            return None
        end: int = 4 + struct.unpack_from("<I", self._received)[0]
        return end if len(self._received) >= end else None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _frame(value: dict[str, Any]) -> bytes:
    data = json.dumps(value).encode()
    return struct.pack("<I", len(data)) + data
