"""Operators of recurrent state: what a request carries from token to token in a constant size.

    conv_state    x[T, C]; w[C, 1, taps] -> [T, C]: causal convolution of each channel over its last taps inputs, SiLU
    delta_gates   x[T, 2 n] = b, a; A_log[n], dt_bias[n] -> exp(-exp(A_log) softplus(a + dt_bias)), sigmoid(b)
    delta_rule    x[T, C] = q, k of the key heads, v of n heads; decay, beta -> [T, n value_dim]. Per head with a state
                  S[key_dim, value_dim], unit q and k: S = decay S; S += k (beta (v - S^T k))^T; S^T q / sqrt(key_dim)

The gated delta rule: arXiv 2412.06464. Tokens are taken one after the other, so that no cut of a step changes a bit.
State hangs on a group of rule `state`; drafts leave in its tail what they would add (request.StateStep).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from octavo.errors import ConfigError
from octavo.program.builder import Builder, fixed_width
from octavo.program.ir import Buffer, Op, Program, T
from octavo.program.rules import Numbers, Rule, elements, integer, weights_once
from octavo.types import CacheTensor, KVGroup, StepShape

STATE = KVGroup("state", "state")
TILE = 16  # columns of delta-rule state that native code keeps side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Heads of the delta rule: value head h takes q and k of key head h * key_heads / heads."""

    key_heads: int
    key_dim: int
    heads: int
    value_dim: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim


def conv_state(b: Builder, out: str, x: str, weight: str) -> str:
    """f32 [T, C]; the state is called after what is written."""
    width, taps = fixed_width(b.at(x)), b.weights[weight].shape[-1]
    if b.weights[weight].shape != (width, 1, taps) or not b.weights[weight].plain or taps < 2:
        raise ConfigError(f"{out}: {weight} {b.weights[weight].shape} is no plain convolution of {width} channels")
    state = _state(b, f"{out}_state", (taps - 1) * width, width)
    outs, shapes = (out, f"{out}.token"), ((T, width), ())
    b.op("conv_state", outs, (x,), shapes, (weight,), ("f32", "token"), state=state, taps=taps)
    return out


def delta_gates(b: Builder, decay: str, beta: str, x: str, a_log: str, dt_bias: str) -> tuple[str, str]:
    """Two f32 [T, n]."""
    heads = b.weights[a_log].shape[0]
    if fixed_width(b.at(x)) != 2 * heads or b.weights[dt_bias].shape != (heads,):
        raise ConfigError(f"{decay}: {x} holds no b and a of {heads} heads")
    b.op("delta_gates", (decay, beta), (x,), ((T, heads), (T, heads)), (a_log, dt_bias))
    return decay, beta


def delta_rule(b: Builder, out: str, x: str, gates: tuple[str, str], shape: DeltaShape) -> str:
    """f32 [T, heads value_dim]; the state is called after what is written."""
    if shape.heads % shape.key_heads or fixed_width(b.at(x)) != shape.channels:
        raise ConfigError(f"{out}: {x} is not q, k and v of {shape}", param="linear_num_value_heads")
    key_width, width = shape.key_heads * shape.key_dim, shape.heads * shape.value_dim
    state = _state(b, f"{out}_state", shape.key_dim * width, key_width + width + 2 * shape.heads)
    b.op(
        "delta_rule",
        (out, f"{out}.token"),
        (x, *gates),
        ((T, width), ()),
        (),
        ("f32", "token"),
        state=state,
        key_heads=shape.key_heads,
        key_dim=shape.key_dim,
        heads=shape.heads,
        value_dim=shape.value_dim,
    )
    return out


def _state(b: Builder, name: str, count: int, tail: int) -> str:
    """`count` floats of every slot, `tail` of every draft."""
    group = b.groups.setdefault(STATE.name, STATE)
    tensor = CacheTensor(name, count, "f32", tail=tail)
    b.groups[STATE.name] = replace(group, tensors=(*group.tensors, tensor))
    b.buffers[name] = Buffer(name, (count,), "f32", "slot")
    return name


def with_tail(program: Program, drafts: int) -> Program:
    """The program whose slots can replay so many drafts."""
    groups = (replace(group, tail=drafts) if group.rule == "state" else group for group in program.groups)
    return replace(program, groups=tuple(groups))


def native_states(program: Program) -> dict[str, tuple[int, int]]:
    """State tensor -> floats of a slot and of a token of its tail, as native code lays them out: columns of delta-rule
    state are padded to whole tiles."""
    tensors = {tensor.name: tensor for group in program.groups for tensor in group.tensors if group.rule == "state"}
    found: dict[str, tuple[int, int]] = {}
    for op in program.ops:
        if "state" not in op.attrs:
            continue
        tensor = tensors[str(op.attrs["state"])]
        count = tensor.elements
        if op.kind == "delta_rule":
            width = integer(op, "value_dim")
            count = count // width * (-(-width // TILE) * TILE)
        found[tensor.name] = count, tensor.tail
    return found


# ---- rules


def _state_bytes(program: Program, op: Op) -> int:
    name = op.attrs["state"]
    return sum(tensor.bytes for group in program.groups for tensor in group.tensors if tensor.name == name)


def _conv_cost(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """The state of each request is read and written once."""
    _, weight_bytes, _ = weights_once(program, op, shape, hidden)
    flops = 2 * integer(op, "taps") * elements(program, op.ins[0], shape, hidden)
    return flops, weight_bytes, 2 * shape.requests * _state_bytes(program, op)


def _delta_cost(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """An element of the state takes two products for S^T k and S^T q, and two for what it becomes."""
    size = integer(op, "heads") * integer(op, "key_dim") * integer(op, "value_dim")
    return 8 * size * shape.tokens, 0, 2 * shape.requests * _state_bytes(program, op)


def _conv_numbers(op: Op) -> tuple[list[int], list[float]]:
    return [integer(op, "taps")], []


def _delta_numbers(op: Op) -> tuple[list[int], list[float]]:
    return [integer(op, name) for name in ("key_heads", "key_dim", "heads", "value_dim")], []


COSTS: Mapping[str, Rule] = {"conv_state": _conv_cost, "delta_gates": weights_once, "delta_rule": _delta_cost}
NUMBERS: Mapping[str, Numbers] = {"conv_state": _conv_numbers, "delta_rule": _delta_numbers}
ROW_OPS = ("delta_gates",)
