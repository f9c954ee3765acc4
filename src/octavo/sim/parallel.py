"""Several devices for one model, as arithmetic: what each holds and reads, what they tell each other, what waits.

tp divides every matrix and the heads (a latent cache, or KV heads fewer than tp, are kept by each), and adds two sums
over all devices to a layer. ep divides the experts further and sends every row to them and back. pp divides the layers:
a token passes all of them, so its time is not shorter, but pp steps are under way at once. dp: whole copies. These are
predictions: Octavo runs on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.program.ir import Op, Program
from octavo.program.rules import Cost
from octavo.sim.machine import MachineModel
from octavo.types import StepShape

LATENCY = 8e-6  # seconds of one exchange between neighbours, however small
_WHOLE = frozenset(("norm", "embed", "rope_angles", "add", "fused.norm"))  # every device computes these for itself


@dataclass(frozen=True, slots=True)
class Parallel:
    """kv_heads: KV heads of the model, 0 where its cache is latent. layers: of the model, hidden: width of a row."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    kv_heads: int = 0
    layers: int = 0
    hidden: int = 0

    def __post_init__(self) -> None:
        if min(self.tp, self.pp, self.dp, self.ep) < 1:
            raise ConfigError("tp, pp, dp and ep are at least 1", param="parallel")

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.ep

    @property
    def cache_share(self) -> float:
        """Of a request's cache that one device holds."""
        return 1.0 / (min(self.tp, max(self.kv_heads, 1)) * self.pp)

    def weight_share(self, *, experts: bool) -> float:
        """Of a matrix that one device holds."""
        return 1.0 / (self.tp * self.pp * (self.ep if experts else 1))

    def share(self, op: Op, cost: Cost) -> Cost:
        """What one device has to do of an operator; those that share layers count as one that has them all."""
        if self.tp == self.ep == 1 or op.kind in _WHOLE:
            return cost
        parts = self.tp * (self.ep if is_expert(op) else 1)
        heads = min(self.tp, max(self.kv_heads, 1))
        return Cost(
            cost.flops // parts, cost.weight_bytes // parts, cost.cache_bytes // heads, cost.value_bytes // self.tp
        )

    def talk(self, program: Program, shape: StepShape, machine: MachineModel) -> float:
        """Seconds of exchanges in a step."""
        if self.tp * self.pp * self.ep == 1:
            return 0.0
        row = 2 * self.hidden * shape.tokens  # bytes in bf16
        link = machine.link or machine.bandwidth
        total = 0.0
        if self.tp > 1:
            total += 2 * self.layers * (2 * row * (self.tp - 1) / self.tp / link + LATENCY)
        if self.ep > 1:
            mixtures = sum(1 for op in program.ops if op.kind == "dispatch")
            total += 2 * mixtures * (row * (self.ep - 1) / self.ep / link + LATENCY)
        return total + (self.pp - 1) * (row / link + LATENCY)

    def bubble(self, steps: int) -> float:
        """The share of time that stages wait when `steps` steps are under way at once."""
        return (self.pp - 1) / (steps + self.pp - 1)


def is_expert(op: Op) -> bool:
    return any(leaf.kind == "expert_linear" for leaf in op.parts or (op,))
