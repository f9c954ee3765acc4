"""The files that are written: one of safetensors in a folder, or one of GGUF; tensor by tensor, in any order.

Both are made beside their place under another name and renamed when they are whole (`beside`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from octavo.errors import EngineError, MissingFileError, ResourceError, UsageError
from octavo.weights.gguf import DEFAULT_ALIGNMENT, TENSOR_TYPES, GGUFHeader
from octavo.weights.safetensors import DTYPE_BITS
from octavo.weights.schemes import SCHEMES

Spec = tuple[str, tuple[int, ...]]  # dtype as the format names it, shape
TYPE_IDS = {name: number for number, name in TENSOR_TYPES.items()}


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A path in the same folder; it becomes `out` at the end, or goes when something is raised.

    Raises UsageError where `out` is there already, MissingFileError without its folder, ResourceError for a full disk.
    """
    if os.path.lexists(out):
        raise UsageError(f"{out}: is there already; name another place or remove it", code="out_exists", param="out")
    if not out.parent.is_dir():
        raise MissingFileError(f"{out.parent}: no such folder")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            path = Path(folder) / out.name
            yield path
            if os.path.lexists(out):
                raise UsageError(f"{out}: came to be meanwhile", code="out_exists", param="out")
            os.rename(path, out)
    except OSError as error:
        raise ResourceError(f"{out}: cannot be written ({error.strerror})", code="out_unwritable") from None


def check_room(out: Path, wanted: int) -> None:
    """Raises ResourceError where the disk has less."""
    free = shutil.disk_usage(out.parent).free
    if free < wanted:
        raise ResourceError(f"{out}: takes {wanted} bytes, and {free} are free", code="disk_full")


class TensorFile:
    """Tensors at places that are known from the start. Each is put once, as bytes of its whole size."""

    def __init__(self, path: Path, head: bytes, places: Mapping[str, tuple[int, int]], total: int) -> None:
        """places: name -> (first byte, bytes). total: bytes of the file."""
        self._left = dict(places)
        self._file: BinaryIO = path.open("wb")
        self._file.write(head)
        self._file.truncate(total)

    def put(self, name: str, data: Any) -> None:
        """data: a numpy array."""
        at, size = self._left.pop(name)
        if data.nbytes != size:
            raise EngineError(f"{name}: {data.nbytes} bytes, not {size}")
        self._file.seek(at)
        self._file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        if error is None and self._left:
            raise EngineError(f"{next(iter(self._left))}: was not written")


def safetensors_file(path: Path, specs: Mapping[str, Spec]) -> TensorFile:
    """Tensors in the order of specs."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places, at = {}, 0
    for name, (dtype, shape) in specs.items():
        size = prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        places[name] = at, size
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return TensorFile(path, head, _behind(head, places), len(head) + at)


def gguf_file(path: Path, source: GGUFHeader, data: Any, dtypes: Mapping[str, str], file_type: int) -> TensorFile:
    """The metadata of `source`, whose whole file is `data` (uint8), but for general.file_type; its tensors as
    `dtypes` says, or as they were."""
    own = {"general.file_type": file_type, "general.quantization_version": 2}
    kept = [data[begin:end].tobytes() for key, (begin, end) in source.keys.items() if key not in own]
    kept += [_string(key) + (4).to_bytes(4, "little") + number.to_bytes(4, "little") for key, number in own.items()]
    alignment = source.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    infos, places, at = [], dict[str, tuple[int, int]](), 0
    for name, header in source.headers.items():
        dtype, shape = dtypes.get(name, header.dtype), header.shape
        size = prod(shape) // SCHEMES[dtype].block * SCHEMES[dtype].block_bytes
        dims = b"".join(dim.to_bytes(8, "little") for dim in reversed(shape))
        count, kind = len(shape).to_bytes(4, "little"), TYPE_IDS[dtype].to_bytes(4, "little")
        infos.append(_string(name) + count + dims + kind + at.to_bytes(8, "little"))
        places[name] = at, size
        at += -(-size // alignment) * alignment
    counts = len(places).to_bytes(8, "little") + len(kept).to_bytes(8, "little")
    head = b"GGUF" + (3).to_bytes(4, "little") + counts + b"".join((*kept, *infos))
    head += bytes(-len(head) % alignment)
    return TensorFile(path, head, _behind(head, places), len(head) + at)


def _behind(head: bytes, places: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {name: (len(head) + at, size) for name, (at, size) in places.items()}


def _string(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw
