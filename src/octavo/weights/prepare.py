"""Applies a weight's preparation (Weight.prep): moves and choices of whole rows, on the data and on every scale array
alike; and for floats alone, whose elements can stand anywhere, columns and transposition. One step computes: `rates`,
of a few numbers of a vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log, prod
from typing import Any, cast

import numpy as np

from octavo.errors import ConfigError, UnsupportedError
from octavo.program.ir import Scalar
from octavo.weights.kinds import Tensor


def prepare(tensor: Tensor, prep: tuple[tuple[Scalar, ...], ...]) -> Tensor:
    """The tensor after each step, in order. Values and kinds are unchanged; they only move."""
    for name, *arguments in prep:
        if name not in STEPS:
            raise ConfigError(f"unknown preparation step {name!r}", param="prep")
        tensor = STEPS[name](tensor, *arguments)
    return tensor


def unpermute_rope(tensor: Tensor, heads: int, rotary: int = 0) -> Tensor:
    """Rows (x0, y0, x1, y1, ...) of each head become (x0, x1, ..., y0, y1, ...): interleaved to half-split pairs.

    rotary: of the first so many rows of each head; 0: of all.
    """
    count = tensor.shape[0]
    if heads < 1 or count % (2 * heads):
        raise ConfigError(f"{count} rows are not {heads} heads of pairs", param="num_attention_heads")
    turned = rotary or count // heads

    def move(array: Any) -> Any:
        by_head = array.reshape(heads, count // heads, *array.shape[1:])
        pairs = by_head[:, :turned].reshape(heads, turned // 2, 2, *array.shape[1:])
        moved = pairs.swapaxes(1, 2).reshape(heads, turned, *array.shape[1:])
        return np.concatenate((moved, by_head[:, turned:]), axis=1).reshape(array.shape)

    return tensor.moved(move)


def head_rows(tensor: Tensor, heads: int, *bounds: int) -> Tensor:
    """Of each head's share of the rows those in [bounds[0], bounds[1]), then in the next range, ...: range by range,
    head by head."""
    shape = _head_rows_shape(tensor.shape, heads, *bounds)

    def choose(array: Any) -> Any:
        by_head = array.reshape(heads, array.shape[0] // heads, *array.shape[1:])
        ranges = [by_head[:, begin:end].reshape(-1, *array.shape[1:]) for begin, end in _ranges(bounds)]
        return np.concatenate(ranges)

    return replace(tensor.moved(choose), shape=shape)


def flatten_heads(tensor: Tensor) -> Tensor:
    """[heads, m, n] becomes [heads m, n]."""
    shape = _flat_shape(tensor.shape)
    return replace(tensor.moved(lambda array: array.reshape(shape[0], array.shape[-1])), shape=shape)


def transpose_heads(tensor: Tensor, heads: int) -> Tensor:
    """[heads m, n] of floats becomes [heads n, m]: the matrix of each head turned."""
    _check_floats(tensor, "transpose_heads")
    shape = _turned_shape(tensor.shape, heads)
    by_head = tensor.data.reshape(heads, tensor.shape[0] // heads, tensor.shape[1])
    return replace(tensor, data=np.ascontiguousarray(by_head.swapaxes(1, 2)).reshape(shape), shape=shape)


def rows(tensor: Tensor, begin: int, step: int, count: int) -> Tensor:
    """Rows begin, begin + step, ... of every matrix of a stack, or of the one matrix; elements of a vector."""
    axis = max(len(tensor.shape) - 2, 0)
    chosen = (slice(None),) * axis + (slice(begin, begin + step * count, step),)
    return replace(tensor.moved(lambda array: array[chosen]), shape=_with(tensor.shape, axis, count))


def columns(tensor: Tensor, begin: int, step: int, count: int) -> Tensor:
    """Columns begin, begin + step, ... of floats."""
    _check_floats(tensor, "columns")
    chosen = (..., slice(begin, begin + step * count, step))
    last = len(tensor.shape) - 1
    return replace(tensor, data=tensor.data.reshape(tensor.shape)[chosen], shape=_with(tensor.shape, last, count))


def transpose(tensor: Tensor) -> Tensor:
    """The last two axes exchanged, of floats."""
    _check_floats(tensor, "transpose")
    *stack, m, n = tensor.shape
    data = np.ascontiguousarray(tensor.data.reshape(tensor.shape).swapaxes(-1, -2))
    return replace(tensor, data=data, shape=(*stack, n, m))


def row(tensor: Tensor) -> Tensor:
    """A vector as the one row of a matrix, which it may be already."""
    return replace(tensor, data=tensor.data.reshape(1, -1), shape=(1, prod(tensor.shape)))


def taps(tensor: Tensor) -> Tensor:
    """[c, k] of floats becomes [c, 1, k]."""
    _check_floats(tensor, "taps")
    c, k = tensor.shape[0], tensor.shape[-1]
    return replace(tensor, data=tensor.data.reshape(c, 1, k), shape=(c, 1, k))


def rates(tensor: Tensor) -> Tensor:
    """-exp(a) of each element of a vector becomes a, rounded to float32. Raises ConfigError for one not below 0."""
    values = tensor.data.reshape(-1).tolist() if tensor.kind == "f32" else []
    if not values or not all(value < 0 for value in values):
        raise ConfigError("rates of decay are not below 0", param="ssm_a")
    return replace(tensor, data=np.array([log(-value) for value in values], np.float32).reshape(tensor.shape))


def _with(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    return (*shape[:axis], count, *shape[axis + 1 :])


def _check_floats(tensor: Tensor, name: str) -> None:
    if tensor.kind not in ("f32", "bf16"):
        raise UnsupportedError(f"{name}: {tensor.kind} weights cannot be taken apart by elements")


def prepared_shape(shape: tuple[int, ...], prep: tuple[tuple[Scalar, ...], ...]) -> tuple[int, ...]:
    """The shape after each step."""
    for name, *arguments in prep:
        if name == "transpose" and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        elif name == "row":
            shape = (1, prod(shape))
        elif name == "taps":
            shape = (shape[0], 1, shape[-1])
        elif name in HEAD_SHAPES:
            shape = HEAD_SHAPES[name](shape, *arguments)
        elif name in ("rows", "columns"):
            axis = len(shape) - 1 if name == "columns" else max(len(shape) - 2, 0)
            begin, step, count = (cast(int, argument) for argument in arguments)
            shape = _with(shape, axis, min(count, len(range(begin, shape[axis], step))))
    return shape


def by_rows(prep: tuple[tuple[Scalar, ...], ...]) -> bool:
    """Whether whole rows of the file become whole rows."""
    moved = {"columns", "transpose", "row", "flatten_heads", "transpose_heads", "taps", "rates"}
    return not moved & {name for name, *_ in prep}


def _ranges(bounds: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _head_rows_shape(shape: tuple[int, ...], heads: int, *bounds: int) -> tuple[int, ...]:
    if heads < 1 or shape[0] % heads or max(bounds) > shape[0] // heads:
        what = f"{shape[0]} rows are not {heads} heads of at least {max(bounds)}"
        raise ConfigError(what, param="num_attention_heads")
    return _with(shape, 0, heads * sum(end - begin for begin, end in _ranges(bounds)))


def _flat_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


def _turned_shape(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    if len(shape) != 2 or shape[0] % heads:
        raise ConfigError(f"{list(shape)} is not {heads} matrices", param="num_attention_heads")
    return (heads * shape[1], shape[0] // heads)


HEAD_SHAPES: dict[Scalar, Callable[..., tuple[int, ...]]] = {
    "head_rows": _head_rows_shape,
    "flatten_heads": _flat_shape,
    "transpose_heads": _turned_shape,
}
STEPS: dict[Scalar, Callable[..., Tensor]] = {
    "unpermute_rope": unpermute_rope,
    "rows": rows,
    "columns": columns,
    "transpose": transpose,
    "row": row,
    "taps": taps,
    "rates": rates,
    "head_rows": head_rows,
    "flatten_heads": flatten_heads,
    "transpose_heads": transpose_heads,
}
