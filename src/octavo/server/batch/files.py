"""The two files of a batch, in OpenAI's format: requests, a line each, and what came of them.

The input is looked through before a model is loaded. The output only grows, by whole lines; a line that a crash cut
off, and answers that say that the server failed, are taken out before a batch goes on.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from octavo.errors import BadFileError, MissingFileError, ResourceError, UsageError

MAX_LINE = 16 << 20  # bytes
MAX_NAME = 512  # characters of a custom_id
SYNC = 64  # lines that a machine without power may lose; a process that dies loses none


class Line(msgspec.Struct, frozen=True):
    """A request. What is wrong with method, url or body is the answer to this line alone."""

    custom_id: str
    method: Any = None
    url: Any = None
    body: Any = None


class _Response(msgspec.Struct):
    status_code: int = 0


class _Answered(msgspec.Struct):
    custom_id: str
    response: _Response | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """names: of all lines, in their order."""

    path: Path
    names: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Input:
        """Raises MissingFileError, BadFileError that names the line."""
        names: dict[str, int] = {}
        for number, line in _lines(path):
            if not 0 < len(line.custom_id) <= MAX_NAME:
                raise _bad(path, number, f"custom_id has 1 to {MAX_NAME} characters")
            if line.custom_id in names:
                raise _bad(path, number, f"custom_id {line.custom_id!r} is that of line {names[line.custom_id]} too")
            names[line.custom_id] = number
        if not names:
            raise BadFileError(f"{path}: no line in it", code="bad_batch")
        return cls(path, tuple(names))

    def lines(self) -> Iterator[Line]:
        for _, line in _lines(self.path):
            yield line


class Output:
    """Answers, appended as they come. A context that holds the file for itself. answered: names of its lines."""

    def __init__(self, path: Path, given: Input) -> None:
        """Raises UsageError for a file of other requests, BadFileError, ResourceError."""
        self.path = path
        if path.exists() and path.samefile(given.path):
            raise UsageError(f"{path}: the answers cannot be written over the requests")
        self._file = _locked(path)
        try:
            lines, self.dropped = _answers(path)
            strangers = lines.keys() - set(given.names)
            if strangers:
                raise UsageError(
                    f"{path}: holds answers to other requests ({min(strangers)[:64]!r}): name another file"
                )
            if self.dropped:
                self._rewrite(lines)
        except BaseException:
            self._file.close()
            raise
        self.answered = set(lines)

    def answer(self, name: str, status: int, request_id: str, body: bytes) -> None:
        """body: JSON, as the endpoint gave it."""
        response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
        self._append({"custom_id": name, "response": response, "error": None})

    def refuse(self, name: str, code: str, message: str) -> None:
        """A line that no endpoint was asked for."""
        self._append({"custom_id": name, "response": None, "error": {"code": code, "message": message}})

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _append(self, fields: dict[str, Any]) -> None:
        """One write a line: a crash leaves whole lines, and at most one that is cut off, the last."""
        line = msgspec.json.encode({"id": f"batch_req_{secrets.token_hex(12)}", **fields}) + b"\n"
        if self._file.write(line) != len(line):
            raise ResourceError(f"{self.path}: no room to write")
        self.answered.add(fields["custom_id"])
        if len(self.answered) % SYNC == 0:
            os.fdatasync(self._file.fileno())

    def _rewrite(self, lines: dict[str, bytes]) -> None:
        """In place of the old file at once, or not at all."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with beside.open("wb") as file:
            file.writelines(lines.values())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        self._file.close()
        self._file = _locked(self.path)


def _locked(path: Path) -> BinaryIO:
    try:
        file: BinaryIO = path.open("ab", buffering=0)
    except OSError as error:
        raise ResourceError(f"{path}: {error.strerror}", code="cannot_write") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ResourceError(f"{path}: another batch writes to it", code="busy") from None
    return file


def _answers(path: Path) -> tuple[dict[str, bytes], int]:
    """(lines that stand, how many were dropped): answers are kept, cut-off lines and faults of the server are not."""
    kept: dict[str, bytes] = {}
    dropped = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                answered = msgspec.json.decode(line, type=_Answered)
            except msgspec.DecodeError:
                if not line.endswith(b"\n"):
                    dropped += 1
                    break
                raise _bad(path, number, "no line of a batch's output") from None
            failed = answered.response is not None and answered.response.status_code >= 500
            if failed or answered.custom_id in kept or not line.endswith(b"\n"):
                dropped += 1
            else:
                kept[answered.custom_id] = line
    return kept, dropped


def _lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Empty lines are none."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise _bad(path, number, f"longer than {MAX_LINE} bytes")
                if line.strip():
                    yield number, _parsed(path, number, line)
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from None


def _parsed(path: Path, number: int, line: bytes) -> Line:
    try:
        return msgspec.json.decode(line, type=Line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad(path, number, str(error)) from None


def _bad(path: Path, number: int, what: str) -> BadFileError:
    return BadFileError(f"{path}: line {number}: {what}", code="bad_batch")
