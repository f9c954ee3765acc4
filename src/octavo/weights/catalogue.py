"""The headers of a checkpoint's tensors, and the mapped file in which their bytes stand.

Opening reads headers only; a tensor's bytes are touched when it is read.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import BadFileError, MissingFileError

MAX_SHOWN = 120  # characters of a name in a message


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """shape: [rows, columns] order, columns adjacent in memory. dtype: as the file's format names it, e.g. "Q4_1",
    "BF16". nbytes: in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class MappedFile:
    """A file mapped for reading. Arrays taken from it keep the map alive after close()."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise BadFileError(f"{path}: not a regular file", code="file_unreadable")
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                self.size = stat.st_size
                self.mtime_ns = stat.st_mtime_ns
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        except FileNotFoundError as error:
            raise MissingFileError(f"{path}: no such file") from error
        except (OSError, ValueError) as error:
            raise BadFileError(f"{path}: cannot be read ({error})", code="file_unreadable") from error
        self._bytes = np.frombuffer(self._map, np.uint8) if self._map is not None else np.empty(0, np.uint8)

    @property
    def bytes(self) -> Any:
        """The whole file as a read-only uint8 array; nothing is copied."""
        return self._bytes

    def fetch(self, begin: int, end: int) -> None:
        """Has the system bring bytes [begin, end) from the disk, without waiting for them."""
        self._advise(mmap.MADV_WILLNEED, begin, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE)

    def release(self, begin: int, end: int) -> None:
        """Takes bytes [begin, end) out of this process's memory; they are read again if they are looked at."""
        self._advise(mmap.MADV_DONTNEED, begin, end // mmap.PAGESIZE * mmap.PAGESIZE)

    def _advise(self, advice: int, begin: int, end: int) -> None:
        begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and begin < end:
            self._map.madvise(advice, begin, min(end, self.size) - begin)

    def close(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # arrays still look at it: the map goes with the last of them
                self._map = None


def quoted(name: str) -> str:
    """A name out of a file as one line shows it: printable and not endless."""
    return name if name.isprintable() and len(name) <= MAX_SHOWN else repr(name[:MAX_SHOWN])
