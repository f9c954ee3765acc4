"""A program beside others in one session: its names behind a prefix, its caches on groups of the others or of its own.

Programs of a session share header buffers, weights of one name and groups of one name. A second model shares none of
its names with the first by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from octavo.program.ir import Op, Program, Scalar, Weight
from octavo.program.rules import CACHES
from octavo.types import KVGroup


def prefixed(program: Program, prefix: str, groups: Iterable[KVGroup] = (), *, slack: int = 0) -> Program:
    """The plain program with `prefix` before every name but those of the header's buffers.

    groups: those of others. Caches that keep every token hang on theirs, if they have any such. A window keeps `slack`
    tokens more than attention sees, for rows that come late, and so is a group of its own.
    """
    shared = next((group.name for group in groups if group.rule == "full"), "")
    buffers = program.buffers
    names = {name: name if buffer.kind == "header" else prefix + name for name, buffer in buffers.items()}

    def attribute(key: str, value: Scalar) -> Scalar:
        return names[str(value)] if key in (*CACHES, "state") and value else value

    def moved(op: Op) -> Op:
        return replace(
            op,
            ins=tuple(names[name] for name in op.ins),
            outs=tuple(names[name] for name in op.outs),
            weights=tuple(prefix + name for name in op.weights),
            attrs={key: attribute(key, value) for key, value in op.attrs.items()},
        )

    def hung(group: KVGroup) -> KVGroup:
        name = shared if group.rule == "full" and shared else prefix + group.name
        tensors = tuple(replace(tensor, name=names[tensor.name]) for tensor in group.tensors)
        return replace(group, name=name, window=group.window + slack if group.window else 0, tensors=tensors)

    return replace(
        program,
        name=prefix + program.name,
        ops=tuple(map(moved, program.ops)),
        buffers={names[name]: replace(buffer, name=names[name]) for name, buffer in buffers.items()},
        weights=_named({prefix + name: weight for name, weight in program.weights.items()}),
        groups=tuple(map(hung, program.groups)),
        exports=tuple(names[name] for name in program.exports),
        spare=(),
    )


def _named(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    return {name: replace(weight, name=name) for name, weight in weights.items()}
