"""What the rules about operators are made of: the cost of one, the sizes of its values, its attributes as numbers.

A file of operators of one idea (experts, recurrence, ...) states its rules in tables of these types; cost.py and
encode.py join them. Sizes and bytes: see cost.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.errors import EngineError
from octavo.program.ir import Op, Program, Weight
from octavo.types import StepShape

CACHES = ("cache_k", "cache_v", "cache")  # attributes that name caches
# Bytes per element of a matrix whose size in memory is not known; scales of i8 and u4 at group 32 with f16 pairs.
_ASSUMED = {"f32": 4.0, "bf16": 2.0, "i8": 1.125, "u4": 0.625, "u5": 0.75, "u6": 0.875, None: 2.0}
_ASSUMED |= {"nl4": 0.5625, "fp4": 0.53125, "fp8": 1.03125}


@dataclass(frozen=True, slots=True)
class Cost:
    """One operator, or many, in one step. Bytes: weights read, cache read and written, values read and written."""

    flops: int = 0
    weight_bytes: int = 0
    cache_bytes: int = 0
    value_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.value_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.cache_bytes + other.cache_bytes,
            self.value_bytes + other.value_bytes,
        )


# (program, operator, step, values that vanished in a fused operator) -> FLOPs, bytes of weights, bytes of caches.
Rule = Callable[[Program, Op, StepShape, Mapping[str, Op]], tuple[int, int, int]]
# The attributes of an operator, in the order in which native code reads them.
Numbers = Callable[[Op], tuple[list[int], list[float]]]


def weights_once(program: Program, op: Op, shape: StepShape, hidden: Mapping[str, Op]) -> tuple[int, int, int]:
    """Elementwise: its weights once."""
    return 0, sum(stored_bytes(program.weights[name]) for name in op.weights), 0


def elements(program: Program, name: str, shape: StepShape, hidden: Mapping[str, Op]) -> int:
    """How many elements a value holds; one that vanished is as large as its writer makes it."""
    if name not in hidden:
        total = 1
        for axis in program.buffers[name].shape:
            total *= axis if isinstance(axis, int) else axis.at(shape)
        return total
    part = hidden[name]
    inner = elements(program, part.ins[0], shape, hidden)
    if part.kind not in ("linear", "expert_linear"):
        return inner
    *_, m, n = program.weights[part.weights[0]].shape
    gathered = len(part.ins) == 3
    return (elements(program, part.ins[2], shape, hidden) if gathered else inner // n) * m


def entry_bytes(program: Program, op: Op) -> int:
    """Bytes that one token has in the caches of an operator; 0 for one without."""
    names = {op.attrs.get(name) for name in CACHES}
    return sum(tensor.bytes for group in program.groups for tensor in group.tensors if tensor.name in names)


def stored_bytes(weight: Weight) -> int:
    """Bytes in memory: as bound, else assumed from the kind (vectors are f32, unbound matrices bf16)."""
    if weight.stored_bytes is not None:
        return weight.stored_bytes
    count = 1
    for axis in weight.shape:
        count *= axis
    return int(count * (4.0 if len(weight.shape) == 1 or weight.plain else _ASSUMED[weight.kind]))


def integer(op: Op, name: str) -> int:
    value = op.attrs[name]
    if not isinstance(value, int):
        raise EngineError(f"{op.outs[0]}: {name} is {value!r}, not an integer")
    return value


def number(op: Op, name: str) -> float:
    value = op.attrs[name]
    if not isinstance(value, int | float):
        raise EngineError(f"{op.outs[0]}: {name} is {value!r}, not a number")
    return float(value)
