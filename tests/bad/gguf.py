"""GGUF headers that lie: name -> (bytes of the file, code). All of them end with exit code 65."""

import struct

from gguf_bytes import array, file, key, string, tensor, text, u32

F32_4 = struct.pack("<4f", 0, 1, 2, 3)
LONG = 1 << 60
BAD = {
    # rows 15 to 26 of tests/CASES.md
    "empty": (b"", "gguf_bad_magic"),
    "magic": (b"GGML" + file()[4:], "gguf_bad_magic"),
    "version 0": (file(version=0), "gguf_bad_version"),
    "version 1": (file(version=1), "gguf_bad_version"),
    "version 99": (file(version=99), "gguf_bad_version"),
    "byte-swapped": (file(version=3 << 24), "gguf_bad_version"),
    "only magic": (b"GGUF", "gguf_truncated"),
    "no counts": (file()[:12], "gguf_truncated"),
    "2^60 keys": (file(n_keys=LONG), "gguf_count"),
    "2^60 tensors": (file(n_tensors=LONG), "gguf_count"),
    "more keys than bytes": (file(n_keys=40), "gguf_count"),
    "key of 10^12 bytes": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 10**12), "gguf_truncated"),
    "value cut off": (file([string("k") + struct.pack("<I", 10) + b"123"])[:40], "gguf_truncated"),
    "string value past the end": (file([key("k", 8, struct.pack("<Q", LONG))]), "gguf_truncated"),
    "numbers past the end": (file([array("k", 4, LONG, b"")]), "gguf_truncated"),
    "strings past the end": (file([array("k", 8, LONG, b"")]), "gguf_truncated"),
    "few strings past the end": (file([array("k", 8, 2, string("a") + struct.pack("<Q", 99))]), "gguf_truncated"),
    "key not UTF-8": (file([text("k", "v").replace(b"k", b"\xff")]), "gguf_bad_string"),
    "value not UTF-8": (file([text("k", b"\xff")]), "gguf_bad_string"),
    "array string not UTF-8": (file([array("k", 8, 2, string("a") + string(b"\xc3"))]), "gguf_bad_string"),
    "value type 13": (file([key("k", 13, b"")]), "gguf_bad_type"),
    "array of arrays": (file([array("k", 9, 1, bytes(12))]), "gguf_bad_type"),
    "duplicate key": (file([u32("k", 1), u32("k", 2)]), "gguf_duplicate"),
    "duplicate tensor": (file([], [tensor("t", (4,)), tensor("t", (4,), 0, 32)], bytes(64)), "gguf_duplicate"),
    "names of two lines": (file([], [tensor("t\n" * 999, (4, 0))]), "gguf_bad_shape"),
    "alignment 0": (file([u32("general.alignment", 0)]), "gguf_bad_alignment"),
    "alignment 48": (file([u32("general.alignment", 48)]), "gguf_bad_alignment"),
    "alignment text": (file([text("general.alignment", "32")]), "gguf_bad_alignment"),
    "ne[1] = 0": (file([], [tensor("t", (4, 0))]), "gguf_bad_shape"),
    "negative ne": (file([], [tensor("t", (4, (1 << 64) - 1))]), "gguf_bad_shape"),
    "n_dims 2^32-1": (file([], [tensor("t", (4,), n_dims=0xFFFFFFFF)]), "gguf_bad_ndims"),
    "n_dims 0": (file([], [tensor("t", (4,), n_dims=0)]), "gguf_bad_ndims"),
    "offset past the end": (file([], [tensor("t", (4,), 0, 1 << 40)], F32_4), "gguf_bad_offset"),
    "end past the end": (file([], [tensor("t", (5,))], F32_4), "gguf_bad_offset"),
    "2^124 elements": (file([], [tensor("t", (1 << 62, 1 << 62))], F32_4), "gguf_bad_offset"),
    "unaligned": (file([], [tensor("t", (4,), 0, 4)], F32_4 + F32_4), "gguf_bad_offset"),
    "overlap": (file([], [tensor("t", (9,)), tensor("u", (4,), 0, 32)], bytes(64)), "gguf_bad_offset"),
    "row not whole blocks": (file([], [tensor("t", (33, 32), 3)], bytes(4096)), "gguf_bad_offset"),
    "unknown type id": (file([], [tensor("t", (32,), 77)], bytes(64)), "gguf_unsupported_type"),
    "IQ2_XXS": (file([], [tensor("t", (256,), 16)], bytes(256)), "gguf_unsupported_type"),
    "tensor cut off": (file([], [tensor("t" * 40, (4,))])[:60], "gguf_truncated"),
}  # fmt: skip
