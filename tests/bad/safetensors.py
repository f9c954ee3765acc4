"""Safetensors files whose headers lie: name -> (bytes of the file, code). All of them end with exit code 65."""

import json
import struct


def file(table: dict | bytes, data: bytes = b"") -> bytes:
    head = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(head)) + head + data


def entry(dtype: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


W = entry("F32", [2, 2], 0, 16)
BAD = {
    # rows 1 to 10 of tests/CASES.md
    "empty": (b"", "st_truncated"),
    "7 bytes": (bytes(7), "st_truncated"),
    "length 2^63": (struct.pack("<Q", 1 << 63), "st_header_too_large"),
    "length 101 MiB": (struct.pack("<Q", 101 << 20), "st_header_too_large"),
    "length beyond the file": (struct.pack("<Q", 100) + b"{}", "st_truncated"),
    "cut inside the header": (struct.pack("<Q", 100) + b'{"a":', "st_truncated"),
    "not UTF-8": (file(b'{"\xff": 1}'), "st_bad_header"),
    "not an object": (file(b"[1, 2]"), "st_bad_header"),
    "header of nothing": (file(b""), "st_bad_header"),
    "cut JSON": (file(b'{"a": '), "st_bad_header"),
    "depth 10,000": (file(b'{"a":' * 10_000 + b"1" + b"}" * 10_000), "st_bad_header"),
    "depth of lists": (file(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"), "st_bad_header"),
    "duplicate name": (file(b'{"a": %s, "a": %s}' % ((json.dumps(W).encode(),) * 2), bytes(16)), "st_bad_header"),
    "NaN": (file(b'{"a": NaN}'), "st_bad_header"),
    "number of 5,000 digits": (file(b'{"a": ' + b"9" * 5000 + b"}"), "st_bad_header"),
    "entry is a number": (file({"a": 1}), "st_bad_header"),
    "no offsets": (file({"a": {"dtype": "F32", "shape": [1]}}), "st_bad_header"),
    "one offset": (file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}), "st_bad_header"),
    "negative offset": (file({"a": entry("F32", [1], -4, 0)}), "st_bad_header"),
    "offset is a bool": (file({"a": entry("U8", [1], False, True)}, b"1"), "st_bad_header"),
    "overlap": (file({"a": W, "b": entry("F32", [2, 2], 12, 28)}, bytes(28)), "st_overlap"),
    "name of two lines": (file({"a\nb": W, "c" * 999: W}, bytes(16)), "st_overlap"),
    "same range": (file({"a": W, "b": W}, bytes(16)), "st_overlap"),
    "empty tensor at another's offset": (file({"a": W, "z": entry("F32", [0], 0, 0)}, bytes(16)), "st_overlap"),
    "empty tensor inside another": (file({"a": W, "z": entry("F32", [0], 8, 8)}, bytes(16)), "st_overlap"),
    "hole": (file({"a": W, "b": entry("U8", [1], 20, 21)}, bytes(21)), "st_uncovered_bytes"),
    "hole at the start": (file({"b": entry("U8", [1], 1, 2)}, bytes(2)), "st_uncovered_bytes"),
    "trailing bytes": (file({"a": W}, bytes(17)), "st_uncovered_bytes"),
    "data without tensors": (file({}, bytes(1)), "st_uncovered_bytes"),
    "data cut off": (file({"a": W}, bytes(15)), "st_truncated"),
    "1000 x 1000 in 4 bytes": (file({"a": entry("F32", [1000, 1000], 0, 4)}, bytes(4)), "st_size_mismatch"),
    "begin > end": (file({"a": entry("F32", [1], 8, 4)}, bytes(8)), "st_size_mismatch"),
    "2^160 elements": (file({"a": entry("F32", [1 << 40] * 4, 0, 4)}, bytes(4)), "st_size_mismatch"),
    "odd count of 4-bit": (file({"a": entry("F4", [1], 0, 0)}), "st_size_mismatch"),
    "dtype X9": (file({"a": entry("X9", [1], 0, 4)}, bytes(4)), "st_bad_dtype"),
    "dtype is a list": (file({"a": {**W, "dtype": ["F32"]}}, bytes(16)), "st_bad_dtype"),
    "negative dim": (file({"a": entry("F32", [-1, -4], 0, 16)}, bytes(16)), "st_bad_shape"),
    "float dim": (file({"a": entry("F32", [4.0], 0, 16)}, bytes(16)), "st_bad_shape"),
    "bool dim": (file({"a": entry("F32", [True], 0, 4)}, bytes(4)), "st_bad_shape"),
    "nine dims": (file({"a": entry("U8", [1] * 9, 0, 1)}, b"1"), "st_bad_shape"),
    "shape is a number": (file({"a": {**W, "shape": 4}}, bytes(16)), "st_bad_shape"),
}  # fmt: skip
