"""Attention of heads that draft step by step, against one row at a time over an explicit list of keys."""

import math

import pytest
import torch

from octavo.train.layers import GatedMLP, LayerShape, Path, PathAttention, RMSNorm

SHAPE = LayerShape(width=12, inner=20, heads=4, kv_heads=2, size=6, eps=1e-5, theta=100.0, positions=64)
LENGTH, STEPS, EATEN = 7, 3, 24


@pytest.fixture(scope="module")
def attention():
    made = torch.Generator().manual_seed(1)
    found = PathAttention(SHAPE, EATEN, made)
    found.o_proj.weight = torch.nn.Parameter(torch.randn(12, 24, generator=made))
    return found


def rotated(vector, position):
    """[heads, d] at a position, pair by pair."""
    out = vector.clone()
    half = SHAPE.size // 2
    for pair in range(half):
        angle = position * SHAPE.theta ** (-2 * pair / SHAPE.size)
        first, second = vector[:, pair], vector[:, pair + half]
        out[:, pair] = first * math.cos(angle) - second * math.sin(angle)
        out[:, pair + half] = second * math.cos(angle) + first * math.sin(angle)
    return out


@torch.no_grad()
def one_row(attention, inputs, row, step):
    """inputs: of each step, [L, EATEN]. Keys: step 0 of rows up to this one, then the steps of this row."""
    places = [(0, before) for before in range(row + 1)] + [(later, row) for later in range(1, step + 1)]
    q = rotated(attention.q_proj(inputs[step][row]).reshape(4, 6), row + step)
    keys, values = [], []
    for number, place in places:
        x = inputs[number][place]
        keys.append(rotated(attention.k_proj(x).reshape(2, 6), place + number))
        values.append(attention.v_proj(x).reshape(2, 6))
    out = []
    for head in range(4):
        scores = torch.stack([q[head] @ key[head // 2] for key in keys]) / 6**0.5
        out.append(scores.softmax(0) @ torch.stack([value[head // 2] for value in values]))
    return attention.o_proj(torch.cat(out))


def test_a_step_sees_known_tokens_and_its_own_path(attention):
    inputs = torch.randn(STEPS, 2, LENGTH, EATEN, generator=torch.Generator().manual_seed(2))
    path = Path([], [])
    with torch.no_grad():
        found = [attention(inputs[step], path) for step in range(STEPS)]
    for step in range(STEPS):
        for sequence, row in ((0, 0), (0, 3), (1, LENGTH - 1)):
            wanted = one_row(attention, inputs[:, sequence], row, step)
            assert torch.allclose(found[step][sequence, row], wanted, atol=1e-4), (step, row)


def test_layers_that_begin_add_nothing():
    made = torch.Generator().manual_seed(1)
    x = torch.randn(1, 3, 12, generator=made)
    assert not GatedMLP(SHAPE, made)(x).any()
    assert not PathAttention(SHAPE, 12, made)(x, Path([], [])).any()


def test_a_norm_brings_rows_to_length_one():
    x = torch.randn(5, 12) * 7
    assert torch.allclose(RMSNorm(torch.ones(12), 1e-5)(x).pow(2).mean(-1), torch.ones(5), atol=1e-4)
