"""Which matrices eat the same values, and what stands before them: where columns can be scaled without changing the
model, because what comes before is scaled the other way.

    norm       x = n(..) w (+ b): w and b are divided, in whatever order the norm multiplies
    gated      x = f(gate) up: the rows of up's matrix are divided, and its bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.errors import UnsupportedError
from octavo.program.ir import Op, Program
from octavo.quantize.subject import Subject


@dataclass(frozen=True, slots=True)
class Sharing:
    """matrices: those that eat one value. before: what may be divided, and by which rule; none: nothing."""

    matrices: tuple[str, ...]
    before: tuple[str, ...] = ()
    rule: Literal["none", "norm", "offset", "rows"] = "none"

    @property
    def vectors(self) -> tuple[str, ...]:
        """Those of `before` that are divided element by element: norms, biases."""
        return () if self.rule == "none" else self.before[1:] if self.rule == "rows" else self.before


RULES: Mapping[str, tuple[str, ...]] = {
    "gptq": (),
    "awq": ("norm", "offset", "rows"),
    "smoothquant": ("norm", "offset"),
}


def sharings(subject: Subject, scheme: str) -> dict[str, Sharing]:
    """Value -> its sharing, in the program's order. Raises UnsupportedError for a model whose matrices are not all
    dense ones that stand in the file as the program eats them."""
    program, wanted = subject.program, subject.matrices
    for name, weight in wanted.items():
        moved = bool(weight.prep) and subject.checkpoint.format == "hf"
        if len(weight.shape) != 2 or moved or len(subject.users(subject.sources[name])) != 1:
            what = f"{weight.sources[subject.checkpoint.format]}: only q4 and q8 write models with such matrices"
            raise UnsupportedError(f"{subject.path}: {what}", param="scheme")
    makers = {out: op for op in program.ops for out in op.outs}
    eaters: dict[str, list[Op]] = {}
    for op in program.ops:
        for name in op.ins:
            eaters.setdefault(name, []).append(op)
    found: dict[str, Sharing] = {}
    for value, ops in eaters.items():
        matrices = tuple(op.weights[0] for op in ops if op.kind == "linear" and op.weights[0] in wanted)
        if matrices:
            alone = len(matrices) == len(ops)
            one = _with_before(program, matrices, makers.get(value) if alone else None, makers)
            found[value] = one if one.rule in RULES[scheme] else Sharing(matrices)
    return found


def _with_before(program: Program, matrices: tuple[str, ...], maker: Op | None, makers: dict[str, Op]) -> Sharing:
    if maker is None:
        return Sharing(matrices)
    if maker.kind == "norm" and maker.weights and not maker.attrs["heads"]:
        rule: Literal["norm", "offset"] = "offset" if maker.attrs["order"] == "gemma" else "norm"
        return Sharing(matrices, maker.weights, rule if _used_once(program, maker.weights) else "none")
    if maker.kind == "glu" and maker.attrs["act"] != "clamped":
        up = makers[maker.ins[1]]
        if up.kind == "linear" and _used_once(program, up.weights):
            return Sharing(matrices, up.weights, "rows")
    return Sharing(matrices)


def _used_once(program: Program, names: tuple[str, ...]) -> bool:
    return all(sum(name in op.weights for op in program.ops) == 1 for name in names)
