"""The reference executor: runs a program of any stage in torch, one operator after another, over paged caches.

It is the specification of every operator and the oracle of the native ones. float32 runs the plain program; bfloat16
runs the lowered one through its `parts`, in float32 with rounding exactly where that program says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from octavo.backends.port import Kept, Limits, StateBytes, WeightStream
from octavo.backends.reference.operators import OPERATORS
from octavo.backends.reference.states import States
from octavo.backends.reference.step import Pages, PageShape, Step, block_bytes
from octavo.backends.reference.tensors import to_float
from octavo.config import KVDType
from octavo.errors import EngineError, UnsupportedError, UsageError
from octavo.program.builder import fixed_width
from octavo.program.feeds import check_feeds
from octavo.program.ir import Op, Program
from octavo.program.lower import activation_kinds, bind, lower, store_caches
from octavo.types import CacheTensor, KVGroup, Numerics, kv_storage
from octavo.weights.kinds import Tensor

VERSION = 1


class ReferenceExecutor:
    """See backends/port.py. dtype: float32 | bfloat16."""

    name = "reference"

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype

    def lower(
        self,
        program: Program,
        kinds: Mapping[str, str],
        *,
        activations: str = "auto",
        kv_dtype: KVDType = "auto",
        isa: str | None = None,
    ) -> Program:
        """auto: bf16 where the lowered program runs. Raises UsageError for a kind asked of float32, which has none."""
        if self.dtype != "float32":
            eaten, stored = "bf16" if activations == "auto" else activations, "bf16" if kv_dtype == "auto" else kv_dtype
            return lower(program, kinds, activations=eaten, kv_dtype=stored)
        if activations != "auto":
            raise UsageError("float32 rounds no activations: use dtype bfloat16", param="activations")
        return bind(program, kinds) if kv_dtype == "auto" else store_caches(bind(program, kinds), kv_dtype)

    def block_bytes(self, programs: Mapping[str, Program], block_tokens: int) -> int:
        return block_bytes(_tensors(programs), block_tokens)

    def state_bytes(self, programs: Mapping[str, Program]) -> StateBytes:
        groups = [group for group in _by_name(programs) if group.rule == "state"]
        kept = sum(group.bytes_per_sequence for group in groups)
        return StateBytes(
            kept + sum(4 * group.tail * tensor.tail for group in groups for tensor in group.tensors), kept
        )

    def open(
        self,
        programs: Mapping[str, Program],
        weights: Callable[[], WeightStream],
        limits: Limits,
        *,
        threads: int,
        isa: str | None = None,
        kept: Kept | None = None,
    ) -> ReferenceSession:
        """Raises UnsupportedError for an operator that has no function here and for an instruction-set class: torch
        chooses its own. threads: torch's, process-wide."""
        if isa is not None:
            raise UnsupportedError(f"isa {isa}: the reference executor has no instruction-set classes", param="isa")
        for program in programs.values():
            for kind in {leaf.kind for op in program.ops for leaf in op.parts or (op,)}:
                if kind not in OPERATORS:
                    raise UnsupportedError(f"{program.name}: the reference executor has no operator {kind}")
        check_feeds(programs)
        torch.set_num_threads(threads)
        held = {name: to_float(each if isinstance(each, Tensor) else each.read()) for name, each in weights()}
        notes = () if kept is None else ("packed weights are kept by the native executor alone",)
        return ReferenceSession(programs, held, limits, notes)


class ReferenceSession:
    """See backends/port.py."""

    def __init__(
        self,
        programs: Mapping[str, Program],
        weights: Mapping[str, torch.Tensor],
        limits: Limits,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes
        self.programs = dict(programs)
        self.weights = dict(weights)
        self.numerics = _numerics(programs)
        self.exports: dict[str, torch.Tensor] = {}  # "PROGRAM/NAME", of the program's last run
        shape = PageShape(limits.num_blocks, limits.block_tokens, limits.max_seqs, limits.max_blocks)
        self.pages = pages(programs, shape, limits.num_snapshots)
        for program in self.programs.values():
            for name, weight in program.weights.items():
                if name not in self.weights:
                    raise EngineError(f"{program.name}: weight {name} was not given")
                if tuple(self.weights[name].shape) != weight.shape:
                    raise EngineError(f"{name}: weight is {tuple(self.weights[name].shape)}, not {weight.shape}")

    @torch.no_grad()
    def run(self, program: str, header: Any) -> None:
        step = Step.parse(header)
        self.pages.update(step.fields["tables"].tolist())
        self.pages.copy(step.fields["copies"].tolist())
        chosen = self.programs[program]
        fed = self._fed(program, step)
        if any(group.rule == "state" for group in chosen.groups):
            self.pages.states.begin(step.fields, step.rows)
        values = {**fed, **step.fields}
        interpret(chosen, values, step, self.pages, self.weights.__getitem__)
        self.exports.update({f"{program}/{name}": values[name] for name in chosen.exports})

    def _fed(self, program: str, step: Step) -> dict[str, torch.Tensor]:
        """What the feeds of a program read, by the names of their foreign buffers."""
        fed: dict[str, torch.Tensor] = {}
        rows = step.fields["source_row"]
        for op in self.programs[program].ops:
            if op.kind != "feed":
                continue
            for name in op.ins[:-1]:
                buffer = self.programs[program].buffers[name]
                dtype = torch.int64 if buffer.dtype == "i32" else torch.float32
                fed[name] = self.exports.get(name, torch.zeros(0, fixed_width(buffer), dtype=dtype))
            count = sum(len(fed[name]) for name in op.ins[:-1])
            for row in rows[(rows < 0) | (rows >= count)].tolist():
                missing = "" if op.ins[0] in self.exports else ", which has not run"
                raise EngineError(f"{program}: header: source_row {row} is no row of {op.ins[0]}{missing}")
        return fed

    def view(self, name: str) -> Any:
        owner = next(key for key, program in self.programs.items() if name in program.exports)
        return self.exports[f"{owner}/{name}"].numpy()

    def logits(self, name: str) -> Any:
        return self.view(name)

    def cache_bytes(self) -> Any:
        return self.pages.memory.numpy()

    def close(self) -> None:
        self.weights.clear()
        self.exports.clear()


def interpret(
    program: Program,
    values: dict[str, torch.Tensor],
    step: Step,
    pages: Pages,
    weight: Callable[[str], torch.Tensor],
    watch: Callable[[Op, Sequence[torch.Tensor]], None] | None = None,
) -> None:
    """Runs every operator of one step. values: the header's fields and foreign buffers by name; afterwards what still
    lives. watch: sees each operator and its inputs before its weights are asked for."""
    last = {name: number for number, op in enumerate(program.ops) for name in op.ins}
    for number, op in enumerate(program.ops):
        for leaf in op.parts or (op,):
            ins = [values[name] for name in leaf.ins if not _is_token(program, name)]
            if watch is not None:
                watch(leaf, ins)
            result = OPERATORS[leaf.kind](leaf, ins, [weight(name) for name in leaf.weights], step, pages)
            if isinstance(result, torch.Tensor):
                result = (result,)
            outs = [name for name in leaf.outs if not _is_token(program, name)]
            values.update(zip(outs, result or (), strict=True))
        inside = {name for leaf in op.parts for name in leaf.outs} - {*op.outs}
        for name in inside | {name for name in op.ins if last[name] == number}:
            if name not in program.buffers or program.buffers[name].kind == "value":
                values.pop(name, None)


def pages(programs: Mapping[str, Program], shape: PageShape, num_snapshots: int = 0) -> Pages:
    """The caches of all programs, empty."""
    states = States(_by_name(programs), shape.max_seqs, num_snapshots)
    return Pages(_tensors(programs), _groups(programs), shape, states)


def _is_token(program: Program, name: str) -> bool:
    """A token value orders operators and holds nothing. Values inside a fused operator have no buffer."""
    return name in program.buffers and program.buffers[name].dtype == "token"


def _by_name(programs: Mapping[str, Program]) -> list[KVGroup]:
    """The groups of all programs; those of one name are told apart by their tensors."""
    return [group for program in programs.values() for group in program.groups]


def _tensors(programs: Mapping[str, Program]) -> dict[str, CacheTensor]:
    """Of groups with blocks, by name, over all programs."""
    return {tensor.name: tensor for group in _by_name(programs) if group.rule != "state" for tensor in group.tensors}


def _groups(programs: Mapping[str, Program]) -> dict[str, int]:
    """Cache tensor -> group number: groups of all programs by name, in order of first appearance."""
    groups = [group for program in programs.values() for group in program.groups]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(group.name for group in groups))}
    return {tensor.name: numbers[group.name] for group in groups for tensor in group.tensors}


def _numerics(programs: Mapping[str, Program]) -> Numerics:
    kinds = {weight.kind for program in programs.values() for weight in program.weights.values()}
    eaten, kv = activation_kinds(programs.values()), kv_storage(group for p in programs.values() for group in p.groups)
    return Numerics("reference", tuple(sorted(kind or "unbound" for kind in kinds)), eaten, kv, "torch-cpu", VERSION)
