"""How long a step takes: the program's cost rules over a machine's limits, corrected by what was measured.

Operators that cost the same in every shape are one, taken so many times. What depends on the rows of a step alone is
computed once for each number of rows; attention is computed for each step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from octavo.program.arena import place
from octavo.program.cost import op_cost, op_product
from octavo.program.encode import barrier_flags
from octavo.program.ir import Op, Program
from octavo.program.limits import Roofs, least_seconds
from octavo.program.rules import Cost, entry_bytes
from octavo.sim.linear import Features, features, find
from octavo.sim.machine import MachineModel
from octavo.sim.parallel import Parallel
from octavo.types import StepShape

_PROBES = (StepShape((600,), (0,), 1), StepShape((600,), (5000,), 1))  # they differ in contexts alone
_FINE = 4  # footprints are told apart by a fourth of a power of two


@dataclass(frozen=True, slots=True)
class Kind:
    """Operators of one cost. contextual: it depends on the contexts of the rows. correction: whose factors apply."""

    op: Op
    count: int
    product: tuple[str, float]
    barrier: bool
    contextual: bool
    correction: str


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of operators takes of a step. bound: the limit that binds them; least: seconds by it alone."""

    name: str
    count: int
    seconds: float
    least: float
    bound: str
    cost: Cost


class StepModel:
    """Seconds of steps of one program on one machine, or on several that share it."""

    def __init__(self, program: Program, machine: MachineModel, parallel: Parallel | None = None) -> None:
        self.program = program
        self.machine = machine
        self.parallel = parallel or Parallel()
        self._order = _kinds(program)
        self.kinds = _merged(self._order)
        self._moving = [_Moving(program, each) for each in self.kinds if each.contextual]
        self._windows = sorted({each.window for each in self._moving})
        self._weights = sum(each.count * op_cost(program, each.op, _PROBES[0]).weight_bytes for each in self.kinds)
        self._plain: dict[tuple[int, int, int], float] = {}

    def seconds(self, shape: StepShape) -> float:
        """Of a step, hand-off included."""
        known = {window: features(shape, window) for window in self._windows}
        costs = [(each.kind, each.cost(shape, known[each.window])) for each in self._moving]
        footprint = self._weights + sum([each.count * cost.cache_bytes for each, cost in costs])
        roofs = self._roofs(footprint)
        moving = 0.0
        for each, cost in costs:
            moving += each.count * self._taken(each, self.parallel.share(each.op, cost), shape, roofs)[0]
        key = (shape.tokens, shape.logit_rows, self._bucket(footprint))
        plain = self._plain.get(key)
        if plain is None:
            plain = self._plain[key] = self._plain_seconds(shape, roofs)
        return plain + moving + self._beside(shape)

    def parts(self, shape: StepShape) -> list[Part]:
        """Where the time goes, the longest first; what is outside operators comes last."""
        costs = [(each, op_cost(self.program, each.op, shape)) for each in self.kinds]
        footprint = sum(each.count * (cost.weight_bytes + cost.cache_bytes) for each, cost in costs)
        roofs = self._roofs(footprint)
        found = [self._part(each, cost, shape, roofs) for each, cost in costs]
        found.sort(key=lambda part: -part.seconds)
        beside = self._beside(shape)
        return [*found, Part("between steps and devices", 1, beside, beside, "hand-off", Cost())]

    def least(self, shape: StepShape) -> list[tuple[str, float, float]]:
        """Of each operator, in order: its correction, the size that this goes by, and what the limits ask of it."""
        costs = [op_cost(self.program, op, shape) for op in self.program.ops]
        roofs = self._roofs(sum(cost.weight_bytes + cost.cache_bytes for cost in costs))
        found = []
        for op, cost, kind in zip(self.program.ops, costs, self._order, strict=True):
            name, size = correction(op, kind.correction, kind.contextual, cost, shape)
            found.append((name, size, max(least_seconds(cost, kind.product, roofs, barrier=kind.barrier).values())))
        return found

    def _bucket(self, footprint: float) -> int:
        return round(math.log2(max(footprint, 1.0)) * _FINE)

    def _roofs(self, footprint: float) -> Roofs:
        return self.machine.roofs(2 ** (self._bucket(footprint) / _FINE))

    def _plain_seconds(self, shape: StepShape, roofs: Roofs) -> float:
        return sum(
            self._part(each, op_cost(self.program, each.op, shape), shape, roofs).seconds
            for each in self.kinds
            if not each.contextual
        )

    def _beside(self, shape: StepShape) -> float:
        """Scheduler, header, sampling and the way of the result; with several devices what they tell each other."""
        own = self.machine.step + self.machine.row * shape.requests
        return own + self.parallel.talk(self.program, shape, self.machine)

    def _part(self, kind: Kind, cost: Cost, shape: StepShape, roofs: Roofs) -> Part:
        cost = self.parallel.share(kind.op, cost)
        taken, least, bound = self._taken(kind, cost, shape, roofs)
        count = kind.count
        total = Cost(count * cost.flops, count * cost.weight_bytes, count * cost.cache_bytes, count * cost.value_bytes)
        return Part(kind.correction, count, count * taken, count * least, bound, total)

    def _taken(self, kind: Kind, cost: Cost, shape: StepShape, roofs: Roofs) -> tuple[float, float, str]:
        """Of one operator: seconds, those of the limit that binds it, and which that is."""
        limits = least_seconds(cost, kind.product, roofs, barrier=kind.barrier)
        bound = max(limits, key=limits.__getitem__)
        if not self.machine.corrections:
            return limits[bound], limits[bound], bound
        name, size = correction(kind.op, kind.correction, kind.contextual, cost, shape)
        known = self.machine.corrections.get(name)
        return known.seconds(limits[bound], size) if known is not None else limits[bound], limits[bound], bound


class _Moving:
    """Operators whose cost depends on contexts, priced by features where their rule is a sum of them."""

    def __init__(self, program: Program, kind: Kind) -> None:
        self.kind = kind
        windows = [leaf.attrs.get("window") for leaf in kind.op.parts or (kind.op,)]
        self.window = next((window for window in windows if isinstance(window, int)), 0)
        self._rule = partial(op_cost, program, kind.op)
        self._priced = find(self._rule, self.window)

    def cost(self, shape: StepShape, known: Features) -> Cost:
        return self._rule(shape) if self._priced is None else self._priced(known)


def correction(op: Op, name: str, contextual: bool, cost: Cost, shape: StepShape) -> tuple[str, float]:
    """Which correction an operator in a step has, and the size that it goes by."""
    if not contextual:
        return name, float(shape.tokens)
    if shape.tokens == shape.requests:
        return f"{name} decode", float(cost.cache_bytes)
    return f"{name} prefill", float(cost.flops or cost.cache_bytes)


def name_of(program: Program, op: Op) -> str:
    """What operators share that have the same correction: kind, what their matrices are held as, and of those with a
    cache how much of it a token has."""
    held = {program.weights[name].kind or "bf16" for name in op.weights if len(program.weights[name].shape) > 1}
    cached = sum(entry_bytes(program, part) for part in op.parts or (op,))
    return " ".join([op.kind, *sorted(held), *([f"{cached} B"] if cached else [])])


def _kinds(program: Program) -> list[Kind]:
    """One for each operator, in order; equal ones where operators cost the same in every shape."""
    behind = [*list(barrier_flags(program, place(program)))[1:], True]
    known: dict[object, Kind] = {}
    found = []
    for op, barrier in zip(program.ops, behind, strict=True):
        form = _form(program, op)
        if form not in known:
            moving = op_cost(program, op, _PROBES[0]) != op_cost(program, op, _PROBES[1])
            known[form] = Kind(op, 1, op_product(program, op), False, moving, name_of(program, op))
        found.append(replace(known[form], barrier=barrier))
    return found


def _form(program: Program, op: Op) -> object:
    """What the cost of an operator is made of: equal ones cost the same. Names are told apart without their layer."""
    values = [program.buffers[name] for name in (*op.ins, *op.outs) if name in program.buffers]
    weights = [program.weights[name] for name in op.weights]
    return (
        op.kind,
        tuple((value.shape, value.dtype) for value in values),
        tuple((weight.shape, weight.kind, weight.stored_bytes) for weight in weights),
        tuple((key, value.partition(".")[2] if isinstance(value, str) else value) for key, value in op.attrs.items()),
        tuple(_form(program, part) for part in op.parts),
    )


def _merged(kinds: Sequence[Kind]) -> list[Kind]:
    """Each once, with how often it occurs, in order of first appearance."""
    found: dict[tuple[int, bool], Kind] = {}
    for kind in kinds:
        key = (id(kind.op), kind.barrier)
        found[key] = replace(kind, count=found[key].count + 1) if key in found else kind
    return list(found.values())
