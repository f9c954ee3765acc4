"""Reads safetensors: one file's header, and a folder of shards whose index is obeyed.

A file: u64 length of the header, JSON {name: {dtype, shape, data_offsets}}, then the data, which the tensors cover
without hole or overlap. A folder: config.json, and model.safetensors.index.json (name -> shard) or one file.

Codes: st_truncated, st_header_too_large, st_bad_header, st_bad_dtype, st_bad_shape, st_size_mismatch, st_overlap,
st_uncovered_bytes, st_bad_index, st_missing_tensor, shard_missing, path_escape, bad_config, config_missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal, NoReturn

from octavo.errors import BadFileError, ConfigError, MissingFileError, OctavoError, PolicyError
from octavo.types import digest
from octavo.weights.catalogue import MappedFile, TensorHeader, quoted

MAX_HEADER = 100 << 20
MAX_JSON = 16 << 20
INDEX = "model.safetensors.index.json"
# Bits of one element.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F64": 64,
    "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "C64": 64,
}  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


def parse_safetensors(data: Any, name: str) -> tuple[dict[str, TensorHeader], dict[str, int], int]:
    """`data`: the whole file as a uint8 array. Returns headers, first byte of each tensor, first byte of the data."""
    size = len(data)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > MAX_HEADER:
        _fail(name, "st_header_too_large", f"header of {length} bytes, at most {MAX_HEADER} are read", 0)
    if length > size - 8:
        _fail(name, "st_truncated", f"header of {length} bytes in a file of {size}", 0)
    table = _table(data[8 : 8 + length].tobytes(), name)
    table.pop("__metadata__", None)
    headers: dict[str, TensorHeader] = {}
    spans: dict[str, tuple[int, int]] = {}
    for tensor, entry in table.items():
        headers[tensor], spans[tensor] = _entry(name, tensor, entry)
    _check_cover(name, spans, 8 + length, size)
    return headers, {tensor: 8 + length + span[0] for tensor, span in spans.items()}, 8 + length


def _fail(name: str, code: str, what: str, at: int) -> NoReturn:
    raise BadFileError(f"{name}: {what} (offset {at})", code=code)


def _table(raw: bytes, name: str) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        _fail(name, "st_bad_header", "the header is not a JSON object", 8)
    try:
        table = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        _fail(name, "st_bad_header", f"the header is not valid: {reason}", 8)
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{quoted(twice)} appears twice")
    return table


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _entry(name: str, tensor: str, entry: Any) -> tuple[TensorHeader, tuple[int, int]]:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        _fail(name, "st_bad_header", f"tensor {quoted(tensor)} lacks dtype, shape or data_offsets", 8)
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _fail(name, "st_bad_dtype", f"tensor {quoted(tensor)} has dtype {quoted(str(dtype))}", 8)
    if not isinstance(shape, list) or not all(_natural(dim) for dim in shape) or len(shape) > 8:
        _fail(name, "st_bad_shape", f"tensor {quoted(tensor)} has a shape that is not up to 8 natural numbers", 8)
    if not isinstance(span, list) or len(span) != 2 or not all(_natural(edge) for edge in span):
        _fail(name, "st_bad_header", f"tensor {quoted(tensor)} has data_offsets that are not two natural numbers", 8)
    begin, end = span
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        _fail(name, "st_size_mismatch", f"tensor {quoted(tensor)}: {dtype} {shape} in {end - begin} bytes", 8)
    return TensorHeader(tensor, tuple(shape), dtype, end - begin), (begin, end)


def _check_cover(name: str, spans: Mapping[str, tuple[int, int]], data_start: int, size: int) -> None:
    """Each byte of the data belongs to one tensor; no two begin at one place, not even an empty one."""
    previous, at = -1, 0
    for tensor, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin < at or begin == previous:
            _fail(name, "st_overlap", f"tensor {quoted(tensor)} overlaps another", data_start + begin)
        if begin > at:
            _fail(
                name,
                "st_uncovered_bytes",
                f"{begin - at} bytes before {quoted(tensor)} belong to none",
                data_start + at,
            )
        previous, at = begin, end
    if data_start + at > size:
        _fail(name, "st_truncated", f"tensors end {data_start + at - size} bytes past the end", size)
    if data_start + at < size:
        rest = size - data_start - at
        _fail(name, "st_uncovered_bytes", f"{rest} bytes after the last tensor belong to none", data_start + at)


class SafetensorsFolder:
    """A folder as a source: the configuration, and each tensor from the shard that the index names for it."""

    format: Literal["gguf", "hf"] = "hf"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Mapping[str, Any] = self._config()
        self.tokenizer: Mapping[str, Any] = {
            name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()
        }
        self.headers: dict[str, TensorHeader] = {}
        self._where: dict[str, tuple[MappedFile, int]] = {}
        self._files: list[tuple[MappedFile, int]] = []
        if (folder / INDEX).is_file():
            self._open_shards(_weight_map(folder / INDEX))
        else:
            self._add(self._single(), None)

    def place(self, name: str) -> tuple[MappedFile, int]:
        return self._where[name]

    def fingerprint(self) -> bytes:
        fields: list[bytes | str | int] = ["hf", json.dumps(self.config, sort_keys=True)]
        for file, data_start in self._files:
            fields += [file.path.name, file.bytes[:data_start].tobytes(), file.size, file.mtime_ns]
        return digest(*fields)

    def close(self) -> None:
        for file, _ in self._files:
            file.close()

    def _config(self) -> dict[str, Any]:
        path = self.folder / "config.json"
        if not path.is_file():
            raise MissingFileError(f"{path}: no such file", code="config_missing")
        return _read_json(path, ConfigError, "bad_config")

    def _single(self) -> Path:
        default = self.folder / "model.safetensors"
        if default.is_file():
            return default
        found = sorted(self.folder.glob("*.safetensors"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise MissingFileError(f"{self.folder}: no {INDEX}, and not one safetensors file ({names})")
        return found[0]

    def _open_shards(self, weight_map: Mapping[str, str]) -> None:
        wanted: dict[str, set[str]] = {}
        for tensor, shard in weight_map.items():
            wanted.setdefault(shard, set()).add(tensor)
        paths = {shard: inside(self.folder, shard) for shard in sorted(wanted)}
        for shard, path in paths.items():
            if not path.is_file():
                raise MissingFileError(
                    f"{self.folder / INDEX}: shard {quoted(shard)} is not there", code="shard_missing"
                )
        for shard, path in paths.items():
            self._add(path, wanted[shard])

    def _add(self, path: Path, wanted: set[str] | None) -> None:
        """Takes the tensors in `wanted` (None: all) from one file; strays in it are not looked at."""
        file = MappedFile(path)
        headers, starts, data_start = parse_safetensors(file.bytes, str(path))
        self._files.append((file, data_start))
        for tensor in sorted(headers if wanted is None else wanted):
            if tensor not in headers:
                what = f"the index says that tensor {quoted(tensor)} is here, but it is not"
                raise BadFileError(f"{path}: {what}", code="st_missing_tensor", param=tensor)
            self.headers[tensor] = headers[tensor]
            self._where[tensor] = (file, starts[tensor])


def inside(folder: Path, name: str) -> Path:
    """A file that an index names, refused unless it stands in the folder: no absolute path, no "..", no link out.

    The hub's cache keeps snapshots/REVISION/ as links into its own blobs/, which is allowed.
    """
    path = folder / name
    home = folder.resolve()
    roots = [home]
    if home.parent.name == "snapshots":
        roots.append(home.parent.parent / "blobs")
    plain = not Path(name).is_absolute() and ".." not in Path(name).parts and "\x00" not in name
    if not plain or not any(path.resolve().is_relative_to(root) for root in roots):
        raise PolicyError(f"{folder / INDEX}: {quoted(name)} leads out of the folder", code="path_escape")
    return path


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = _read_json(path, BadFileError, "st_bad_index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadFileError(f"{path}: weight_map is not a table of name to file", code="st_bad_index")
    return weight_map


def _read_json(path: Path, kind: type[OctavoError], code: str) -> dict[str, Any]:
    """A JSON object from a small file."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"more than {MAX_JSON} bytes")
        value = json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise kind(f"{path}: not valid JSON: {reason}", code=code) from error
    if not isinstance(value, dict):
        raise kind(f"{path}: not a JSON object", code=code)
    return value
