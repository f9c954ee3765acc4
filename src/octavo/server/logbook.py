"""The log: a line a request at its end, and what else is said, as text or JSON. No prompts, no outputs, no keys.

Lines are written by a thread of their own: a reader of stderr that has stopped costs lines, never a request.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator
from logging.handlers import QueueHandler
from typing import Any, Literal, TextIO

from octavo.server.records import Record, summary

LogFormat = Literal["text", "json", "off"]
_log = logging.getLogger("octavo.request")
_server = logging.getLogger("octavo.server")  # what loads and unloads
_WORDS = {logging.INFO: "note", logging.CRITICAL: "error"}
MAX_LINES = 10_000  # that wait to be written
END_SECONDS = 2.0  # for the last of them


def note(record: Record) -> None:
    """Reads that went well are not worth a line: pages and dashboards make many."""
    if _log.isEnabledFor(logging.INFO) and not (record.method in ("GET", "HEAD") and record.status < 400):
        _log.info("request", extra={"request": _fields(record)})


def _fields(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": record.id,
        "key": record.tenant or None,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "seconds": round(record.seconds, 6),
    }
    if record.prompts:
        of_engine = summary(record)
        shown |= {name: of_engine[name] for name in ("model", "prompt_tokens", "cached_tokens", "output_tokens")}
        shown |= {name: _rounded(of_engine[name]) for name in ("first_token_seconds", "tokens_per_second")}
        shown["finish_reason"] = of_engine["finish_reason"]
    return shown


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage() if record.name == _log.name else record.name,
        }
        request: dict[str, Any] | None = getattr(record, "request", None)
        return json.dumps(line | (request or {"message": super().format(record)}))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        request: dict[str, Any] | None = getattr(record, "request", None)
        if request is not None:
            return f"{clock} {_spelled(request)}"
        word = _WORDS.get(record.levelno, record.levelname.lower())
        first, *more = super().format(record).splitlines()
        return "\n".join((f"{clock} {word}: {first}", *more))


def _spelled(request: dict[str, Any]) -> str:
    said = f"{request['method']} {request['route']} {request['status']} in {request['seconds']:.3f} s"
    if "model" in request:
        cached = f" ({request['cached_tokens']} cached)" if request["cached_tokens"] else ""
        said += f", {request['prompt_tokens']} tokens{cached} -> {request['output_tokens']}"
        if request["first_token_seconds"] is not None:
            said += f", first after {request['first_token_seconds']:.3f} s"
        if request["tokens_per_second"] is not None:
            said += f", {request['tokens_per_second']:.1f}/s"
        said += f", {request['finish_reason'] or 'embedded'}"
    return f"{said}  {request['id']}"


class _Lossy(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Formatted by the thread that writes."""
        return record


class _Writer(threading.Thread):
    """No handler of the library, whose end would wait for a write that never returns."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__(name="octavo-logbook", daemon=True)
        self.lines: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_LINES)
        self._stream = stream
        self._formatter = formatter

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            while (record := self.lines.get()) is not None:
                self._stream.write(self._formatter.format(record) + "\n")
                self._stream.flush()

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self.lines.put_nowait(None)
            self.join(END_SECONDS)


@contextlib.contextmanager
def logbook(kind: LogFormat, stream: TextIO | None = None) -> Iterator[None]:
    """Everything that is logged inside goes to `stream` (stderr). off: only warnings, as text."""
    writer = _Writer(stream or sys.stderr, JsonFormatter() if kind == "json" else TextFormatter())
    handler, root = _Lossy(writer.lines), logging.getLogger()
    levels = {logger: logger.level for logger in (root, _log, _server)}
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for logger in (_log, _server):
        logger.setLevel(logging.WARNING if kind == "off" else logging.INFO)
    writer.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in levels.items():
            logger.setLevel(level)
        writer.close()
