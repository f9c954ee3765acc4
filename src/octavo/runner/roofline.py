"""Measured operators against what the machine allows: seconds of each, the limit that binds it, the share it reaches.

Pure arithmetic over costs (program/cost.py), times and least times (program/limits.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.program.arena import place
from octavo.program.cost import op_cost, op_product
from octavo.program.encode import barrier_flags
from octavo.program.ir import Op, Program
from octavo.program.limits import LIMITS, Roofs, least_seconds
from octavo.program.rules import Cost
from octavo.types import StepShape


@dataclass(frozen=True, slots=True)
class Reading:
    """One operator, or all of one kind over the same matrices, in a step or in the steps of a prompt.

    name: of the operator's first output, or the kind with its matrices. dtypes: what it eats and what it writes.
    product: what its matrix products are made of, "" without any; operations: of them, a multiply-add being two for
    each product it takes. least: seconds that the machine needs at least, by limit.
    """

    name: str
    kind: str
    matrices: str
    dtypes: str
    count: int
    seconds: float
    cost: Cost
    product: str
    operations: int
    least: Mapping[str, float]

    @property
    def bound(self) -> str:
        return max(LIMITS, key=lambda limit: self.least[limit])

    @property
    def limit_seconds(self) -> float:
        return self.least[self.bound]

    @property
    def share_of_limit(self) -> float:
        return self.limit_seconds / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.cost.bytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        return self.cost.flops / self.seconds if self.seconds else 0.0

    def __add__(self, other: Reading) -> Reading:
        return replace(
            self,
            count=self.count + other.count,
            seconds=self.seconds + other.seconds,
            cost=self.cost + other.cost,
            operations=self.operations + other.operations,
            least={limit: self.least[limit] + other.least[limit] for limit in LIMITS},
        )


def readings(program: Program, shapes: Sequence[StepShape], seconds: Sequence[float], roofs: Roofs) -> list[Reading]:
    """One per operator, in order. seconds: of each operator, over all the steps of these shapes."""
    behind = [*list(barrier_flags(program, place(program)))[1:], True]
    found = []
    for op, taken, barrier in zip(program.ops, seconds, behind, strict=True):
        parts = [_reading(program, op, shape, roofs, barrier) for shape in shapes]
        total = parts[0]
        for part in parts[1:]:
            total = replace(total + part, count=1)
        found.append(replace(total, seconds=taken))
    return found


def by_kind(found: Sequence[Reading]) -> list[Reading]:
    """Operators of one kind over the same matrices (those of other layers) as one, in order of first appearance."""
    groups: dict[tuple[str, str, str], Reading] = {}
    for each in found:
        key = (each.kind, each.matrices, each.dtypes)
        named = replace(each, name=f"{each.kind} {each.matrices}".strip())
        groups[key] = groups[key] + named if key in groups else named
    return list(groups.values())


def _reading(program: Program, op: Op, shape: StepShape, roofs: Roofs, barrier: bool) -> Reading:
    cost = op_cost(program, op, shape)
    product = op_product(program, op)
    return Reading(
        name=op.outs[0],
        kind=op.kind,
        matrices="+".join(_role(name) for name in op.weights if len(program.weights[name].shape) > 1),
        dtypes=_dtypes(program, op),
        count=1,
        seconds=0.0,
        cost=cost,
        product=product[0] if cost.flops else "",
        operations=int(cost.flops * product[1]),
        least=least_seconds(cost, product, roofs, barrier=barrier),
    )


def _role(weight: str) -> str:
    """A weight's name without its layer."""
    layer, _, rest = weight.partition(".")
    return rest if layer.isdigit() else weight


def _dtypes(program: Program, op: Op) -> str:
    eats, writes = (
        "+".join(dict.fromkeys(program.buffers[name].dtype for name in names)) for names in (op.ins, op.outs)
    )
    return f"{eats} -> {writes}"
