"""The native executor: lowers programs, chooses the instruction-set class, streams weights into their packed form.

Weights are packed one by one as they arrive, so the checkpoint is never held twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from octavo import _native
from octavo.backends.native.packed import PackedFile, UnusableError
from octavo.backends.native.session import NativeSession
from octavo.backends.port import Kept, Limits, StateBytes, WeightStream
from octavo.config import KVDType
from octavo.errors import EngineError, ResourceError, UnsupportedError, UsageError
from octavo.program.encode import PAGE_TOKENS, cache_shapes, encode
from octavo.program.feeds import check_feeds
from octavo.program.ir import Program, Weight
from octavo.program.lower import activation_kinds, lower
from octavo.program.recurrence import native_states
from octavo.types import Numerics, kv_storage
from octavo.weights.kinds import KIND_NUMBERS, Tensor
from octavo.weights.stack import Stack
from octavo.weights.stored import Assembled, OnDisk, Stored

VERSION = 2
ISAS = ("portable", "avx2", "avx512", "amx")  # from the lowest class up; the index is native's number
PANEL = 32  # rows of one
PIECE_BYTES = 16 << 20  # of a file, mapped at a time


class NativeExecutor:
    """See backends/port.py."""

    name = "native"

    def lower(
        self,
        program: Program,
        kinds: Mapping[str, str],
        *,
        activations: str = "auto",
        kv_dtype: KVDType = "auto",
        isa: str | None = None,
    ) -> Program:
        eaten, stored = choose_activations(activations, isa), "bf16" if kv_dtype == "auto" else kv_dtype
        return lower(program, kinds, activations=eaten, kv_dtype=stored)

    def block_bytes(self, programs: Mapping[str, Program], block_tokens: int) -> int:
        shapes = {name: shape for program in programs.values() for name, shape in cache_shapes(program).items()}
        return sum(shape.block_bytes(block_tokens) for shape in shapes.values())

    def state_bytes(self, programs: Mapping[str, Program]) -> StateBytes:
        states = {name: sizes for program in programs.values() for name, sizes in native_states(program).items()}
        drafts = max((group.tail for program in programs.values() for group in program.groups), default=0)
        kept = sum(floats for floats, _ in states.values())
        return StateBytes(4 * (kept + 2 * drafts * sum(tail for _, tail in states.values())), 4 * kept)

    def open(
        self,
        programs: Mapping[str, Program],
        weights: Callable[[], WeightStream],
        limits: Limits,
        *,
        threads: int,
        isa: str | None = None,
        kept: Kept | None = None,
    ) -> NativeSession:
        """isa None: OCTAVO_ISA, else the best class. Raises ResourceError for a class that this processor lacks,
        UnsupportedError for an operator without a kernel, UsageError for blocks that are not whole pages."""
        _check_kernels(programs)
        check_feeds(programs)
        if limits.block_tokens % PAGE_TOKENS:
            raise UsageError(
                f"block_tokens must be a multiple of {PAGE_TOKENS} with the native executor, not {limits.block_tokens}",
                param="block_tokens",
            )
        chosen, notes = choose_isa(isa)
        native = _native.Session(
            ISAS.index(chosen),
            limits.max_tokens,
            limits.max_rows,
            limits.max_seqs,
            limits.max_blocks,
            limits.num_blocks,
            limits.block_tokens,
            threads,
            limits.num_snapshots,
        )
        wanted = {name: weight for program in programs.values() for name, weight in program.weights.items()}
        mapped: Any = None
        said: tuple[str, ...] = ()
        if kept is None:
            _stream(native.weights, weights(), wanted)
        else:
            file = PackedFile(kept, ISAS.index(chosen), threads)
            mapped, said = _kept(file, native.weights, weights, wanted)
        try:
            for name, program in programs.items():
                native.add_program(np.frombuffer(encode(replace(program, name=name)), np.int32))
            native.finish()
        except RuntimeError as error:
            raise EngineError(str(error)) from None
        return NativeSession(native, tuple(programs), _numerics(programs, chosen), (*notes, *said), mapped)


def available_isas() -> tuple[str, ...]:
    """Classes that this processor and system run, from the lowest up to OCTAVO_ISA or to a higher one asked for."""
    return tuple(name for number, name in enumerate(ISAS) if _native.isa_supported(number))


def usable_isas() -> tuple[str, ...]:
    """Of those, the classes whose kernels pass their self-check here."""
    return tuple(name for name in available_isas() if _native.isa_self_check(ISAS.index(name)))


def choose_activations(wanted: str = "auto", isa: str | None = None) -> str:
    """auto: integers, which are faster; on AMX bf16, which its tiles multiply."""
    if wanted != "auto":
        return wanted
    return "bf16" if choose_isa(isa)[0] == "amx" else "int"


def choose_isa(wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The class to run (wanted, else OCTAVO_ISA, else the best) and notes for the user. A class whose self-check fails
    is replaced by the next lower one."""
    wanted = wanted or os.environ.get("OCTAVO_ISA") or None
    if wanted in ISAS:
        _native.allow_isa(ISAS.index(wanted))
    available = available_isas()
    if wanted is not None and wanted not in available:
        raise ResourceError(f"instruction set {wanted!r} is not one of those here: {', '.join(available)}", param="isa")
    rest = available[: available.index(wanted) + 1] if wanted else available
    notes: list[str] = []
    for name in reversed(rest):
        if _native.isa_self_check(ISAS.index(name)):
            return name, tuple(notes)
        notes.append(f"the {name} kernels failed their self-check on this processor and are not used")
    raise EngineError("no instruction-set class passed its self-check")


def _check_kernels(programs: Mapping[str, Program]) -> None:
    known = set(_native.op_names())
    for program in programs.values():
        for op in program.ops:
            if op.kind not in known:
                raise UnsupportedError(f"{program.name}: operator {op.kind} has no native kernel")


def _stream(store: Any, weights: WeightStream, wanted: Mapping[str, Weight]) -> None:
    for name, weight in weights:
        if name not in wanted:
            raise EngineError(f"weight {name} belongs to no program")
        if tuple(weight.shape) != wanted[name].shape:
            raise EngineError(f"{name}: weight is {tuple(weight.shape)}, not {wanted[name].shape}")
        try:
            _add_weight(store, name, weight, plain=wanted[name].plain)
        except ValueError as error:
            raise EngineError(f"{name}: {error}") from None


def _kept(
    file: PackedFile, store: Any, weights: Callable[[], WeightStream], wanted: Mapping[str, Weight]
) -> tuple[Any, tuple[str, ...]]:
    """(what the store borrows from, notes): the weights from the file, or packed and written to it."""
    notes: list[str] = []
    try:
        mapped = file.load(store, {name: weight.shape for name, weight in wanted.items()})
        if mapped is not None:
            return mapped, ()
    except UnusableError as reason:
        notes.append(f"packed weights are written again, {file.path} is not usable: {reason}")
    _stream(store, weights(), wanted)
    try:
        file.save(store, wanted)
    except OSError as error:
        notes.append(f"packed weights are not kept in {file.path.parent}: {error.strerror or error}")
    return None, tuple(notes)


def _add_weight(held: Any, name: str, weight: Tensor | OnDisk, *, plain: bool) -> None:
    parts = weight.parts if isinstance(weight, Stack) else (weight,)
    first = parts[0]
    if isinstance(first, Assembled) and first.whole_rows and not plain:
        for number, part in enumerate(parts):
            _fill_rows(held, name, cast(Assembled, part), number, prod(weight.shape[:-2]))
        return
    if plain or not isinstance(first, Stored) or len(weight.shape) == 1 or not _by_rows(first):
        _add_tensor(held, name, weight if isinstance(weight, Tensor) else weight.read(), plain=plain)
        return
    *_, rows, columns = weight.shape
    held.reserve(name, first.scheme.name, rows, columns, prod(weight.shape[:-2]))
    for number, part in enumerate(parts):
        _pack_rows(held, name, cast(Stored, part), number)


def _by_rows(stored: Stored) -> bool:
    """Whether its rows go from the file into panels as they are."""
    return stored.kind == stored.scheme.kind and stored.whole_rows


def _pack_rows(native: Any, name: str, stored: Stored, number: int) -> None:
    """Matrix `number` of a weight, or from there on all of a stack, from the file into panels, by all threads, some
    panels at a time: what lies behind is let go of."""
    *stack, rows, columns = stored.shape
    order, file_rows = stored.order(), stored.header.shape[-2]
    addresses = (stored.raw.ctypes.data, 0 if order is None else order.ctypes.data)
    source = (name, stored.scheme.name, rows, columns, *addresses)
    panels, step = -(-rows // PANEL), max(1, PIECE_BYTES // (PANEL * stored.row_bytes))

    def behind(panel: int) -> int:
        """Rows of the file before this panel, where they stand in order; else those of whole matrices."""
        return panel // panels * file_rows + (0 if order is not None else panel % panels * PANEL)

    last = prod(stack) * panels
    for begin in range(0, last, step):
        end = min(begin + step, last)
        native.pack(*source, begin, end, number, file_rows * stored.row_bytes)
        stored.release(behind(begin), behind(end))


def _fill_rows(native: Any, name: str, weight: Assembled, number: int, count: int) -> None:
    """Matrix `number` of a weight of `count`, or from there on all of a stack, from several tensors, some panels at a
    time: what is held beside the panels is one piece."""
    *stack, rows, columns = weight.shape
    read, step = weight.open(), max(1, PIECE_BYTES // (PANEL * 4 * columns)) * PANEL
    for each in range(prod(stack)):
        first = (number + each) * -(-rows // PANEL)
        for begin in range(0, rows, step):
            piece = read(each * rows + begin, each * rows + min(begin + step, rows))
            if first == begin == 0:
                native.make_room(name, [*_description(piece, (rows, columns)), *([count] if count > 1 else [])])
            _fill(native, name, piece, first + begin // PANEL)


def _add_tensor(native: Any, name: str, tensor: Tensor, *, plain: bool) -> None:
    if plain or len(tensor.shape) == 1:
        if tensor.kind != "f32":
            raise UnsupportedError(f"{name}: vectors, routers and biases are held as f32, not {tensor.kind}")
        data = np.ascontiguousarray(tensor.data, np.float32)
        native.add_vector(name, data.ctypes.data, data.size)
        return
    *stack, rows, _ = tensor.shape
    native.make_room(name, [*_description(tensor, tensor.shape[-2:]), *stack])
    for number in range(stack[0] if stack else 1):
        _fill(native, name, tensor.one(number) if stack else tensor, number * -(-rows // PANEL))


def _description(tensor: Tensor, shape: tuple[int, ...]) -> list[int]:
    """A matrix of this shape, held as the tensor is, as native/bind_weights.cpp takes it."""
    codes = (tensor.group, tensor.offset, tensor.scale_code, tensor.bias_code)
    return [KIND_NUMBERS[tensor.kind], *shape, *codes]


def _fill(native: Any, name: str, tensor: Tensor, panel: int) -> None:
    held = [None if array is None else np.ascontiguousarray(array) for array in tensor.arrays]
    addresses = [0 if array is None else array.ctypes.data for array in held]
    native.fill(name, panel, _description(tensor, tensor.shape), *addresses)


def _numerics(programs: Mapping[str, Program], isa: str) -> Numerics:
    kinds = {weight.kind for program in programs.values() for weight in program.weights.values()}
    kv = kv_storage(group for program in programs.values() for group in program.groups)
    eaten = activation_kinds(programs.values())
    return Numerics("native", tuple(sorted(kind or "unbound" for kind in kinds)), eaten, kv, isa, VERSION)
