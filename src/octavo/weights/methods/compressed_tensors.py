"""compressed-tensors: what llm-compressor writes. One or more groups of sizes; which group a weight belongs to is
told by its tensors' types and shapes.

pack-quantized    weight_packed int32 [out, in b / 32], a stream of q + 2^(b - 1) along each row, lowest bits first;
                  weight_scale [out, groups]; weight_zero_point int32 [out b / 32, groups], likewise along columns;
                  weight_g_idx int32 [in]; weight_shape int64 [2]
int-quantized     weight int8 [out, in], weight_scale [1] or [out, 1], weight_zero_point int8 likewise
float-quantized   weight e4m3 [out, in], weight_scale [1], [out, 1] or a block each
mxfp4             weight_packed uint8 [out, in / 2], low nibble first; weight_scale uint8 [out, in / 32], 2^(s - 127)
w = (q - zero) scale. Activation scales are not used (fp8.py); scales of caches neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.weights.catalogue import TensorHeader
from octavo.weights.methods import fp8, mxfp4
from octavo.weights.methods.method import (
    FLOATS,
    ORDERED,
    Joined,
    Parts,
    Rows,
    bad,
    by_columns,
    grouped,
    groups_of,
    held_as,
    held_bytes,
    integers,
    joined_header,
    refuse,
    scales,
    split_zero,
    zeros_from_words,
)

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mxfp4-pack-quantized", "dense")
STRATEGIES = ("tensor", "channel", "group", "block")
CACHE_SCALES = (".k_scale", ".v_scale", ".output_scale", ".q_scale")


@dataclass(frozen=True, slots=True)
class Sizes:
    """One group of the configuration. group: columns of a scale, 0 for all of a row."""

    kind: str
    bits: int
    strategy: str
    group: int
    block: tuple[int, int] | None
    symmetric: bool


class CompressedTensors:
    suffixes: tuple[str, ...] = (".weight_packed", ".weight_scale")
    unused: tuple[str, ...] = (
        *(".weight_shape", ".input_scale", ".input_zero_point", ".output_zero_point"),
        *CACHE_SCALES,
    )
    notes: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        for name in ("transform_config", "sparsity_config"):
            if config.get(name):
                refuse(name, "not supported")
        groups = config.get("config_groups")
        if not isinstance(groups, dict) or not groups or len(groups) > 64:
            refuse("config_groups", "is not a table of groups", "bad_config")
        written = [config.get("format"), *(group.get("format") for group in groups.values() if isinstance(group, dict))]
        for style in written:
            if style is not None and style not in (*FORMATS, "mixed-precision"):
                refuse("format", f"{str(style)[:40]!r} is not one of {', '.join(FORMATS)}")
        self.sizes = tuple(_sizes(group) for group in groups.values())
        if any(_fixed(group) for group in groups.values()):
            self.notes = (fp8.ACTIVATIONS,)

    def joined(self, stem: str, parts: Parts) -> Joined:
        if parts.has(".weight_packed"):
            packed = parts.need(".weight_packed", ("I32", "U8"), 2)
            return self._powers(parts, packed) if packed.dtype == "U8" else self._packed(parts, packed)
        weight = parts.need(".weight", ("I8", "F8_E4M3"), 2)
        if weight.dtype == "I8":
            return _bytes(parts, weight)
        for sizes in self.sizes:
            if sizes.block is not None:
                return fp8.scaled_blocks(parts, ".weight_scale", sizes.block)
        return fp8.scaled_rows(parts, ".weight_scale")

    def _packed(self, parts: Parts, packed: TensorHeader) -> Joined:
        rows, words = packed.shape
        scale = parts.need(".weight_scale", FLOATS)
        for sizes in self.sizes:
            columns = words * 32 // sizes.bits if sizes.bits else 0
            group = sizes.group or columns
            if sizes.kind == "int" and sizes.bits and rows and columns:
                shapes = ((1,), (1, 1)) if sizes.strategy == "tensor" else ((rows, -(-columns // group)),)
                if scale.shape in shapes:
                    return _packed_of(parts, sizes, (rows, columns), group)
        what = f"has shape {list(scale.shape)}, which is no group's of quantization_config beside {list(packed.shape)}"
        bad("quant_shape", scale.name, what)

    def _powers(self, parts: Parts, packed: TensorHeader) -> Joined:
        rows, columns = packed.shape[0], 2 * packed.shape[1]
        if not rows or columns % 32 or not columns:
            bad("quant_shape", packed.name, f"has shape {list(packed.shape)}, not blocks of 16 bytes")
        if not any(sizes.kind == "float" and sizes.bits == 4 for sizes in self.sizes):
            bad("quant_mixed", packed.name, "is of a format that quantization_config does not state")
        scale = parts.sized(".weight_scale", ("U8",), (rows, columns // 32))
        names, shape = (packed.name, scale.name), (rows, columns)
        header = joined_header(parts, shape, "MXFP4", names)
        return Joined(header, names, "fp4", held_bytes("fp4", shape, 32, 1), mxfp4.open_rows)


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        refuse(name, "is not a table", "bad_config")
    return value


def _sizes(group: Any) -> Sizes:
    weights = _table(_table(group, "config_groups").get("weights"), "weights")
    activations = group.get("input_activations")
    eaten = {} if activations is None else _table(activations, "input_activations")
    if eaten.get("dynamic") and eaten.get("strategy") == "tensor":
        refuse("input_activations", "one dynamic scale for all rows of a step makes each depend on the others")
    kind, strategy = weights.get("type", "int"), weights.get("strategy") or "tensor"
    bits: Any = weights.get("num_bits")
    if (kind, bits) not in (("int", 2), ("int", 3), ("int", 4), ("int", 8), ("float", 4), ("float", 8)):
        refuse("weights", f"{str(kind)[:20]} of {str(bits)[:20]} bits is not supported")
    if weights.get("dynamic"):
        refuse("weights", "dynamic weights are not supported")
    if strategy not in STRATEGIES:
        refuse("strategy", f"{str(strategy)[:40]!r} is not one of {', '.join(STRATEGIES)}")
    size = weights.get("group_size") if strategy == "group" else None
    if strategy == "group" and (type(size) is not int or not 1 <= size <= 1 << 20):
        refuse("group_size", f"{str(size)[:40]} is no size of groups", "bad_config")
    block = fp8.block_of(weights.get("block_structure")) if strategy == "block" else None
    return Sizes(str(kind), bits, strategy, size or 0, block, bool(weights.get("symmetric", True)))


def _fixed(group: Mapping[str, Any]) -> bool:
    """Whether activations have scales in the file."""
    activations = group.get("input_activations")
    return isinstance(activations, dict) and not activations.get("dynamic")


def _packed_of(parts: Parts, sizes: Sizes, shape: tuple[int, int], group: int) -> Joined:
    bits, (rows, columns) = sizes.bits, shape
    packed, scale = parts.stem + ".weight_packed", parts.headers[parts.stem + ".weight_scale"]
    stated = parts.sized(".weight_shape", ("I64", "I32"), (2,))
    if parts.load(stated.name).tolist() != [rows, columns]:
        bad("quant_shape", stated.name, f"does not state [{rows}, {columns}], which {packed} holds")
    groups = -(-columns // group)
    names: tuple[str, ...] = (packed, scale.name)
    biased = not sizes.symmetric or parts.has(".weight_zero_point")
    if biased:
        zeros = parts.sized(".weight_zero_point", ("I32",), (-(-rows * bits // 32), groups))
        names = (*names, zeros.name)
    index = None
    if parts.has(".weight_g_idx"):
        header = parts.sized(".weight_g_idx", ("I32",), (columns,))
        index = groups_of(parts.load(header.name), columns, groups, header.name)
        if np.array_equal(index, np.arange(columns) // group):
            index = None
    kind = held_as("i8" if bits == 8 else "u4", columns, group) if index is None else "bf16"
    if columns % 2:
        bad("quant_shape", packed, f"has an odd number of columns, {columns}")
    middle = 0 if bits == 8 else 1 << (bits - 1)

    def open_rows(words: Any, scale_: Any, zeros: Any = None) -> Rows:
        factors = np.broadcast_to(scales(scale_, scale.dtype), (rows, groups))
        zero, offset = None, middle
        if zeros is not None:
            offset, zero = split_zero(zeros_from_words(zeros.T, bits, rows, plus=-128 if bits == 8 else 0).T, middle)

        def read(begin: int, end: int) -> Any:
            held, data = integers(words[begin:end], bits, columns)
            away = None if zero is None else zero[begin:end]
            if index is not None:
                return by_columns(held, data, index, factors[begin:end], offset=offset, zero=away)
            return grouped(held, data, columns, group, factors[begin:end], offset=offset, zero=away)

        return read

    size = held_bytes(kind, shape, group, (2 if scale.dtype == "F16" else 4) + (2 if biased else 0))
    header = joined_header(
        parts, shape, f"INT{bits}, groups of {group}" + ("" if index is None else " out of order"), names
    )
    return Joined(header, names, kind, size, open_rows, "" if index is None else ORDERED)


def _bytes(parts: Parts, weight: TensorHeader) -> Joined:
    """int8, a scale for all or one a row."""
    rows, columns = weight.shape
    if 0 in weight.shape:
        bad("quant_shape", weight.name, f"has shape {list(weight.shape)}")
    per_row = ((), (1,), (1, 1), (rows,), (rows, 1))
    scale = parts.sized(".weight_scale", FLOATS, *per_row)
    names: tuple[str, ...] = (weight.name, scale.name)
    if parts.has(".weight_zero_point"):
        names = (*names, parts.sized(".weight_zero_point", ("I8",), *per_row).name)
    shape, dtype = (rows, columns), scale.dtype
    kind = held_as("i8", columns, columns)

    def open_rows(weight: Any, scale: Any, zeros: Any = None) -> Rows:
        factors = np.broadcast_to(scales(scale, dtype).reshape(-1, 1), (rows, 1))
        away = None if zeros is None else np.broadcast_to(zeros.reshape(-1, 1), (rows, 1)).astype(np.int16)

        def read(begin: int, end: int) -> Any:
            zero = None if away is None else away[begin:end]
            return grouped(
                "i8", np.ascontiguousarray(weight[begin:end]), columns, columns, factors[begin:end], zero=zero
            )

        return read

    size = held_bytes(kind, shape, columns, (2 if dtype == "F16" else 4) + (2 if len(names) == 3 else 0))
    return Joined(joined_header(parts, shape, "INT8", names), names, kind, size, open_rows)
