"""Packed weights kept in a file: the first load writes it, later ones map it and pack nothing.

The file: HEAD | a table in JSON, [name, shape as WeightStore gives it, first byte, bytes] a weight | data from the next
page on, each weight at a multiple of 64. Its key names the checkpoint, the weights wanted of it and the packing itself
(`layout`), its digest covers head and table, its sum the data: what does not agree in all of them is not used. A file
appears under its name complete or not at all, so that processes may load and write at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from octavo import _native
from octavo.backends.port import Kept
from octavo.types import digest
from octavo.weights.fetch import settle
from octavo.weights.schemes import SCHEMES

MAGIC, VERSION = b"OCTAVOPK", 2
HEAD = struct.Struct("<8sIQ32sQQ32s")  # magic, version, bytes of the table, key, bytes of data, their sum, digest
ALIGN = 64
MOST_TABLE = 64 << 20


class UnusableError(Exception):
    """A file that is not the one wanted; says why."""


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One such file: where it is, or would be. isa: the number of the class whose packing it holds."""

    kept: Kept
    isa: int
    threads: int

    @property
    def key(self) -> bytes:
        return digest("packed", self.kept.content, layout(self.isa))

    @property
    def path(self) -> Path:
        return self.kept.folder / f"{self.key.hex()[:40]}.packed"

    def load(self, store: Any, shapes: Mapping[str, tuple[int, ...]]) -> mmap.mmap | None:
        """Has the store borrow every weight from the file, which must stay mapped as long as the store lives.

        None without a file. Raises UnusableError; the store is then as it was, or is to be filled again.
        """
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < HEAD.size:
                    raise UnusableError("it is cut short")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnusableError(error.strerror or str(error)) from None
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        content = np.frombuffer(mapped, np.uint8)
        table, data = self._checked(content)
        if {name for name, *_ in table} != set(shapes):
            raise UnusableError("it holds other weights")
        for name, shape, begin, nbytes in table:
            if begin + nbytes > len(data) or not _fits(shape, shapes[name]):
                raise UnusableError(f"{name} has another shape")
            try:
                store.borrow(name, shape, data[begin : begin + nbytes])
            except ValueError as error:
                raise UnusableError(f"{name} {error}") from None
        return mapped

    def _checked(self, content: Any) -> tuple[list[Any], Any]:
        """The table, and the data behind it."""
        head = content[: HEAD.size].tobytes()
        magic, version, table_bytes, key, data_bytes, total, signed = HEAD.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise UnusableError("it is of another version")
        start = _page(HEAD.size + table_bytes)
        if table_bytes > MOST_TABLE or len(content) != start + data_bytes:
            raise UnusableError("it is cut short")
        text = content[HEAD.size : HEAD.size + table_bytes].tobytes()
        if hashlib.sha256(head[:-32] + text).digest() != signed:
            raise UnusableError("its header is damaged")
        if key != self.key:
            raise UnusableError("it belongs to another model")
        data = content[start:]
        if _native.checksum(data, self.threads) != total:
            raise UnusableError("its data is damaged")
        return json.loads(text), data

    def save(self, store: Any, names: Mapping[str, Any]) -> None:
        """Writes the file beside its name and renames it. Raises OSError; nothing is left behind then."""
        table: list[Any] = []
        at = 0
        for name in names:
            nbytes = len(store.data(name))
            table.append([name, store.shape(name), at, nbytes])
            at = -(-(at + nbytes) // ALIGN) * ALIGN
        text = json.dumps(table).encode()
        start = _page(HEAD.size + len(text))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        number, part = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.stem, suffix=".part")
        try:
            with os.fdopen(number, "r+b") as file:
                file.truncate(start + at)
                for name, _, begin, _ in table:
                    file.seek(start + begin)
                    file.write(store.data(name))
                file.flush()
                with mmap.mmap(number, 0, access=mmap.ACCESS_READ) as written:
                    total = _native.checksum(np.frombuffer(written, np.uint8)[start:], self.threads)
                head = HEAD.pack(MAGIC, VERSION, len(text), self.key, at, total, bytes(32))[:-32]
                file.seek(0)
                file.write(head + hashlib.sha256(head + text).digest() + text)
                file.flush()
                os.fsync(number)
            settle(Path(part), self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise


def _fits(held: list[int], shape: tuple[int, ...]) -> bool:
    """Whether what WeightStore holds, floats in rows or one or more matrices, is a weight of this shape."""
    if len(held) == 1:
        return held[0] == prod(shape)
    return (tuple(held[1:3]) if len(shape) == 2 else (held[7], *held[1:3])) == shape


@functools.cache
def layout(isa: int) -> bytes:
    """Names the packing of this build for a class: a digest of what a pattern becomes in each format."""
    store = _native.Session(isa, 16, 16, 1, 1, 1, 16, 1, 0).weights
    rows, columns = 48, 512
    found: list[bytes | str | int] = []
    for name, scheme in SCHEMES.items():
        raw = np.resize(np.arange(251, dtype=np.uint8), rows * columns // scheme.block * scheme.block_bytes)
        store.reserve(name, name, rows, columns)
        store.pack(name, name, rows, columns, raw.ctypes.data, 0, 0, 2)
        found += [name, store.data(name).tobytes()]
    return digest(*found)


def _page(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
