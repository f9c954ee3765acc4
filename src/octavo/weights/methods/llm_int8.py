"""LLM.int8() (arXiv 2208.07339): weights as int8 with one scale a row, c = max|w|: q = round(127 w / c), w = q c / 127.

As bitsandbytes stores it: `weight` int8 [out, in], `SCB` float32 [out] (c), `weight_format` (a marker). A checkpoint
that says load_in_8bit and holds floats is quantized by the same rule when it is loaded, its head apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo import _native
from octavo.weights.kinds import Tensor
from octavo.weights.methods.method import (
    FLOATS,
    Joined,
    Parts,
    Rows,
    grouped,
    held_as,
    held_bytes,
    joined_header,
    refuse,
    scales,
)

# Modules that stay as they are.
KEPT = ("lm_head", "embed_tokens", "embed", "wte", "wpe")


class LLMInt8:
    suffixes: tuple[str, ...] = (".SCB", ".weight")
    unused: tuple[str, ...] = (".weight_format",)
    notes: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        if config.get("load_in_4bit") or config.get("_load_in_4bit"):
            refuse("load_in_4bit", "4-bit codebooks of bitsandbytes are not supported")
        if not (config.get("load_in_8bit") or config.get("_load_in_8bit")):
            refuse("load_in_8bit", "neither 8 nor 4 bits are asked for", "bad_config")
        skipped = config.get("llm_int8_skip_modules") or []
        if not isinstance(skipped, list) or not all(isinstance(name, str) for name in skipped):
            refuse("llm_int8_skip_modules", "is not a list of names", "bad_config")
        self.kept = (*KEPT, *skipped)

    def joined(self, stem: str, parts: Parts) -> Joined | None:
        if not parts.has(".SCB"):
            return self._on_load(stem, parts)
        weight = parts.need(".weight", ("I8",), 2)
        scale = parts.sized(".SCB", ("F32",), weight.shape[:1])
        names, shape = (weight.name, scale.name), (weight.shape[0], weight.shape[1])
        kind = held_as("i8", shape[1], shape[1])

        def open_rows(weight: Any, largest: Any) -> Rows:
            step = np.empty((len(largest), 1), np.float32)
            _native.divide(np.ascontiguousarray(largest), 127.0, step)
            return lambda begin, end: grouped("i8", weight[begin:end], shape[1], shape[1], step[begin:end])

        return Joined(
            joined_header(parts, shape, "INT8", names), names, kind, held_bytes(kind, shape, shape[1], 4), open_rows
        )

    def _on_load(self, stem: str, parts: Parts) -> Joined | None:
        header = parts.headers[f"{stem}.weight"]
        named = any(f".{kept}." in f".{stem}." for kept in self.kept)
        if header.dtype not in FLOATS or len(header.shape) != 2 or named:
            return None
        shape, dtype = (header.shape[0], header.shape[1]), header.dtype

        def open_rows(weight: Any) -> Rows:
            return lambda begin, end: _quantized(weight[begin:end], dtype)

        title = f"{dtype}, as INT8"
        size = held_bytes("i8", shape, shape[1], 4)
        return Joined(joined_header(parts, shape, title, (header.name,)), (header.name,), "i8", size, open_rows)


def _quantized(rows: Any, dtype: str) -> Tensor:
    wide = scales(rows, dtype)
    if dtype == "F16":
        wide = np.empty(rows.shape, np.float32)
        _native.f16_to_f32(np.ascontiguousarray(rows).reshape(-1).view(np.uint8), wide)
    data, scale = np.empty(rows.shape, np.int8), np.empty((len(rows), 1), np.float32)
    _native.quantize_rows(np.ascontiguousarray(wide), data, scale)
    return Tensor("i8", rows.shape, data, rows.shape[1], scale=scale)
