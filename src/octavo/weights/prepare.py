"""Applies a weight's preparation (Weight.prep): moves of whole rows, on the data and on every scale array alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.errors import ConfigError
from octavo.program.ir import Scalar
from octavo.weights.kinds import Tensor


def prepare(tensor: Tensor, prep: tuple[tuple[Scalar, ...], ...]) -> Tensor:
    """The tensor after each step, in order. Values and kinds are unchanged; only rows move."""
    for name, *arguments in prep:
        if name not in STEPS:
            raise ConfigError(f"unknown preparation step {name!r}", param="prep")
        tensor = STEPS[name](tensor, *arguments)
    return tensor


def unpermute_rope(tensor: Tensor, heads: int) -> Tensor:
    """Rows (x0, y0, x1, y1, ...) of each head become (x0, x1, ..., y0, y1, ...): interleaved to half-split pairs."""
    rows = tensor.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise ConfigError(f"{rows} rows are not {heads} heads of pairs", param="num_attention_heads")

    def move(array: Any) -> Any:
        pairs = array.reshape(heads, rows // heads // 2, 2, *array.shape[1:])
        return pairs.swapaxes(1, 2).reshape(array.shape)

    return tensor.moved(move)


STEPS: dict[Scalar, Callable[..., Tensor]] = {"unpermute_rope": unpermute_rope}
