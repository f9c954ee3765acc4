"""A decoder layer as heads have it, and its attention over drafts that go on step by step.

Step 0 of row t stands behind the model's own hidden state and sees the keys of step 0 of all rows up to t: what the
drafter's cache holds of tokens that are known. Step j > 0 stands behind its own step j - 1 and sees those too, and the
keys of its own steps 1 .. j: the drafts of its path. Its position is t + j. This is what a head meets when it drafts,
so it is taught by what it makes of its own values (the training-time test of arXiv 2503.01840).

Legend: B sequences, L tokens, D hidden, H query heads, G KV heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from octavo.errors import UnsupportedError
from octavo.model_config import ModelConfig

THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Those of the model's own layers. eps: of norms."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    size: int
    eps: float
    theta: float
    positions: int

    @classmethod
    def of(cls, config: ModelConfig) -> LayerShape:
        """Raises UnsupportedError where the model's heads do not rotate whole."""
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        if size % 2 or heads % kv_heads:
            raise UnsupportedError(
                f"heads of {size}, {heads} over {kv_heads}: no layer like that is trained", param="kind"
            )
        width, theta = config.hidden_size, config.rope.theta or THETA
        inner = config.intermediate_size or 4 * width
        return cls(width, inner, heads, kv_heads, size, config.rms_eps or 1e-5, theta, config.max_position)

    def config(self) -> dict[str, Any]:
        """As a Llama states it."""
        return {
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.size,
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "max_position_embeddings": self.positions,
            "hidden_act": "silu",
        }


class RMSNorm(torch.nn.Module):
    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.clone())
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def matrix(rows: int, columns: int, made: torch.Generator, scale: float = 1.0) -> torch.nn.Linear:
    """A linear without bias; values keep their size times `scale`. 0: it adds nothing at first."""
    linear = torch.nn.Linear(columns, rows, bias=False, device="meta")
    drawn = torch.randn(rows, columns, generator=made) * scale / columns**0.5
    linear.weight = torch.nn.Parameter(drawn)
    return linear


class GatedMLP(torch.nn.Module):
    def __init__(self, shape: LayerShape, made: torch.Generator) -> None:
        super().__init__()
        self.gate_proj = matrix(shape.inner, shape.width, made)
        self.up_proj = matrix(shape.inner, shape.width, made)
        self.down_proj = matrix(shape.width, shape.inner, made, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


@dataclass(slots=True)
class Path:
    """Keys and values of the steps so far, [B, G, L, d] each."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]


class PathAttention(torch.nn.Module):
    """eaten: columns of the input."""

    def __init__(self, shape: LayerShape, eaten: int, made: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = matrix(shape.heads * shape.size, eaten, made)
        self.k_proj = matrix(shape.kv_heads * shape.size, eaten, made)
        self.v_proj = matrix(shape.kv_heads * shape.size, eaten, made)
        self.o_proj = matrix(shape.width, shape.heads * shape.size, made, 0.0)

    def forward(self, x: torch.Tensor, path: Path) -> torch.Tensor:
        """[B, L, D] of x [B, L, eaten]: the next step of the path, whose keys and values are added to it."""
        shape, step = self.shape, len(path.keys)
        angles = _angles(x.shape[1], step, shape)
        q, k = (
            _rotated(_split(self.q_proj(x), shape.size), angles),
            _rotated(_split(self.k_proj(x), shape.size), angles),
        )
        path.keys.append(k)
        path.values.append(_split(self.v_proj(x), shape.size).float())
        share = shape.heads // shape.kv_heads
        keys, values = ([one.repeat_interleave(share, 1) for one in held] for held in (path.keys, path.values))
        scores = q @ keys[0].transpose(2, 3)
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        own = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
        scores = torch.cat((scores.masked_fill(~visible, -torch.inf), *own), -1) * shape.size**-0.5
        weights = scores.softmax(-1)
        mixed = weights[..., : x.shape[1]] @ values[0]
        for number, value in enumerate(values[1:]):
            mixed = mixed + weights[..., x.shape[1] + number, None] * value
        found: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return found


def _split(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, heads, L, d]"""
    return x.reshape(*x.shape[:2], -1, size).transpose(1, 2)


def _angles(length: int, step: int, shape: LayerShape) -> torch.Tensor:
    """[L, d / 2]"""
    half = torch.arange(shape.size // 2, dtype=torch.float32) * 2 / shape.size
    return (torch.arange(length) + step)[:, None] * shape.theta**-half


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The pairs (i, i + d / 2) of each head."""
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
