"""The headers of a checkpoint's tensors, and the mapped file in which their bytes stand.

Opening reads headers only; a tensor's bytes are touched when it is read.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import BadFileError, MissingFileError


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
        try:
            with path.open("rb") as file:
                stat = path.stat()
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

    def close(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # arrays still look at it: the map goes with the last of them
                self._map = None
