"""Reads the header of a GGUF file (versions 2 and 3, little-endian): metadata, and where each tensor stands.

The file: "GGUF", u32 version, u64 tensors, u64 keys; per key: string, u32 type, value; per tensor: string, u32 n_dims,
u64 dims[] (columns first), u32 type, u64 offset into the data section, which begins at the next multiple of
general.alignment. A string is u64 length, bytes. Every count and offset is checked against the file before it is used.

Codes: gguf_bad_magic, gguf_bad_version, gguf_truncated, gguf_count, gguf_bad_type, gguf_bad_string, gguf_duplicate,
gguf_bad_alignment, gguf_bad_ndims, gguf_bad_shape, gguf_bad_offset, gguf_unsupported_type.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from octavo import _native
from octavo.errors import BadFileError
from octavo.weights.catalogue import TensorHeader, quoted
from octavo.weights.schemes import SCHEMES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

# Type ids of tensors. Those without a scheme are named in the refusal.
TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

STRING, ARRAY = 8, 9
# Type ids of metadata values: struct code and width in bytes.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# The fewest bytes that one entry takes: key length, type, value; name length, n_dims, one dim, type, offset.
LEAST_KEY, LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """metadata: key -> number, bool, string, or a list of those. offsets: tensor name -> first byte in the file.
    data_start: first byte of the data section; everything before it is header. keys: key -> its bytes [begin, end) with
    type and value."""

    version: int
    metadata: dict[str, Any]
    headers: dict[str, TensorHeader]
    offsets: dict[str, int]
    data_start: int
    keys: dict[str, tuple[int, int]]


def parse_gguf(data: Any, name: str) -> GGUFHeader:
    """`data`: the whole file as a uint8 array; `name`: what errors call it."""
    return _Parser(data, name).parse()


class _Parser:
    def __init__(self, data: Any, name: str) -> None:
        self.data = data
        self.view = memoryview(data)
        self.size = len(data)
        self.at = 0
        self.name = name

    def fail(self, code: str, what: str, at: int | None = None) -> NoReturn:
        raise BadFileError(f"{self.name}: {what} (offset {self.at if at is None else at})", code=f"gguf_{code}")

    def parse(self) -> GGUFHeader:
        if self.size < 4 or bytes(self.view[:4]) != MAGIC:
            self.fail("bad_magic", "not a GGUF file")
        self.at = 4
        version = self.number("I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "big-endian GGUF" if swapped in VERSIONS else f"GGUF version {version}"
            self.fail("bad_version", f"{kind} is not supported, only versions 2 and 3 in little-endian order", 4)
        tensors = self.count("tensors", LEAST_TENSOR)
        keys = self.count("keys", LEAST_KEY)
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(keys):
            start = self.at
            key = self.string("a key")
            if key in metadata:
                self.fail("duplicate", f"key {quoted(key)} appears twice", start)
            metadata[key] = self.value(key)
            spans[key] = start, self.at
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
            self.fail("bad_alignment", f"general.alignment is {str(alignment)[:20]}, not a power of two")
        headers, offsets, data_start = self.catalogue(tensors, alignment)
        return GGUFHeader(version, metadata, headers, offsets, data_start, spans)

    def catalogue(self, tensors: int, alignment: int) -> tuple[dict[str, TensorHeader], dict[str, int], int]:
        headers: dict[str, TensorHeader] = {}
        offsets: dict[str, int] = {}
        for _ in range(tensors):
            start = self.at
            name = self.string("a tensor name")
            if name in headers:
                self.fail("duplicate", f"tensor {quoted(name)} appears twice", start)
            headers[name], offset = self.tensor(name)
            if offset % alignment:
                self.fail(
                    "bad_offset", f"tensor {quoted(name)}: offset {offset} is not a multiple of {alignment}", start
                )
            offsets[name] = offset
        data_start = -(-self.at // alignment) * alignment
        end = 0
        for name in sorted(offsets, key=offsets.__getitem__):
            offset, nbytes = offsets[name], headers[name].nbytes
            if offset < end:
                self.fail("bad_offset", f"tensor {quoted(name)} overlaps the one before it", data_start + offset)
            end = offset + nbytes
            if data_start + end > self.size:
                self.fail("bad_offset", f"tensor {quoted(name)} ends {data_start + end - self.size} bytes past the end")
            offsets[name] = data_start + offset
        return headers, offsets, data_start

    def tensor(self, name: str) -> tuple[TensorHeader, int]:
        start = self.at
        n_dims = self.number("I")
        if not 1 <= n_dims <= MAX_DIMS:
            self.fail("bad_ndims", f"tensor {quoted(name)} has {n_dims} dimensions", start)
        dims = [self.number("Q") for _ in range(n_dims)]
        if not all(0 < dim < 1 << 63 for dim in dims):
            self.fail("bad_shape", f"tensor {quoted(name)} has shape {dims}", start)
        type_id = self.number("I")
        dtype = TENSOR_TYPES.get(type_id, f"type {type_id}")
        scheme = SCHEMES.get(dtype)
        if scheme is None:
            self.fail("unsupported_type", f"tensor {quoted(name)} has {dtype}, which is not supported", self.at - 4)
        if dims[0] % scheme.block:
            self.fail("bad_offset", f"tensor {quoted(name)}: rows of {dims[0]} are not whole {dtype} blocks", start)
        elements = 1
        for dim in dims:
            elements *= dim
        nbytes = elements // scheme.block * scheme.block_bytes
        return TensorHeader(name, tuple(reversed(dims)), dtype, nbytes), self.number("Q")

    # ---- primitives
    def number(self, code: str) -> Any:
        width = struct.calcsize(code)
        if self.size - self.at < width:
            self.fail("truncated", "the file ends inside its header")
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += width
        return value

    def count(self, what: str, least: int) -> int:
        value: int = self.number("Q")
        if value > self.size // least:
            self.fail("count", f"{value} {what} cannot stand in {self.size} bytes", self.at - 8)
        return value

    def string(self, what: str) -> str:
        start = self.at
        length: int = self.number("Q")
        if length > self.size - self.at:
            self.fail("truncated", f"{what} of {length} bytes runs past the end", start)
        raw = bytes(self.view[self.at : self.at + length])
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail("bad_string", f"{what} is not UTF-8", start)

    def value(self, key: str) -> Any:
        type_id = self.number("I")
        if type_id == STRING:
            return self.string(f"the value of {quoted(key)}")
        if type_id == ARRAY:
            return self.array(key)
        if type_id not in SCALARS:
            self.fail("bad_type", f"key {quoted(key)} has value type {type_id}", self.at - 4)
        return self.number(SCALARS[type_id])

    def array(self, key: str) -> list[Any]:
        type_id = self.number("I")
        start = self.at
        length: int = self.number("Q")
        if type_id == STRING:
            found, after = _native.gguf_strings(self.data, self.at, length)
            if found is None:
                self.strings_fault(key, after)
            self.at = after
            return found
        if type_id not in SCALARS:
            self.fail("bad_type", f"key {quoted(key)} has an array of type {type_id}", start - 4)
        dtype = np.dtype("<" + SCALARS[type_id])
        if length > (self.size - self.at) // dtype.itemsize:
            self.fail("truncated", f"{length} numbers of {quoted(key)} run past the end", start)
        values = self.data[self.at : self.at + length * dtype.itemsize].view(dtype)
        self.at += length * dtype.itemsize
        return values.tolist()

    def strings_fault(self, key: str, at: int) -> NoReturn:
        """Reads the string at fault again, for the error that names what is wrong with it."""
        self.at = at
        self.string(f"a string of {quoted(key)}")
        self.fail("truncated", f"the strings of {quoted(key)} run past the end")
