"""GGUF files put together by hand, so that each count and offset can be wrong."""

from __future__ import annotations

import struct


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, type_id: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", type_id) + value


def u32(name: str, value: int) -> bytes:
    return key(name, 4, struct.pack("<I", value))


def text(name: str, value: str | bytes) -> bytes:
    return key(name, 8, string(value))


def array(name: str, type_id: int, count: int, body: bytes) -> bytes:
    return key(name, 9, struct.pack("<IQ", type_id, count) + body)


def tensor(name: str, dims: tuple[int, ...], type_id: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    head = string(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims)
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, type_id, offset)


def file(
    keys: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data
