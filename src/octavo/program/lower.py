"""Lowering: pure passes from the plain program to the one that a machine runs: bind -> quantize -> fuse.

Each pass returns a Program that the reference executor runs; a fused operator carries the plain ones it stands for as
`parts`. Rounding changes in one place only: the explicit quantize operators and the storage type of the KV caches.
The lowered operators, with their inputs, weights and attributes: docs/program.md. For the native executor arena.py and
encode.py follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from octavo.errors import ConfigError, EngineError
from octavo.program.builder import fixed_width
from octavo.program.ir import Buffer, DType, Op, Program, Scalar
from octavo.program.rules import integer
from octavo.types import CacheTensor

CacheDType = Literal["f32", "bf16", "i8"]

# How a linear may eat its input. bf16: rounded. i8g32: int8 with a scale per 32 columns. i15, i15g32: 15-bit integers
# with a scale per row, or per 32 columns. i15q: i15g32 for the quarter of a row's blocks with the largest magnitudes,
# i8g32 for the others. Integers need whole-numbered weights; bf16 and fp8 ones keep bf16.
# i8row: int8 with a scale per row; i8x: the same, with 15 bits for magnitudes from 6 on, which do not set the scale.
ACTIVATION_KINDS = ("bf16", "i15", "i8g32", "i15g32", "i15q", "i8row", "i8x")
WHOLE_ROWS = ("i15", "i15q", "i8row", "i8x")  # an epilogue, which sees no whole row, cannot write them
THROUGHOUT: dict[str, DType] = {"i8g32": "i8g32", "i8row": "i8row", "i8x": "i8x"}
BY_WRITER = ("int", "int15")
INTEGER_WEIGHTS = ("i8", "u4", "u5", "u6", "nl4", "fp4")
LINEARS = ("linear", "expert_linear", "head_linear")  # operators whose first input is quantized before them


def lower(
    program: Program,
    kinds: Mapping[str, str],
    stored_bytes: Mapping[str, int] | None = None,
    activations: str = "bf16",
    *,
    kv_dtype: CacheDType = "bf16",
) -> Program:
    """All passes, with caches of `kv_dtype`. activations: as `quantize` has them."""
    return fuse(store_caches(quantize(bind(program, kinds, stored_bytes), activations), kv_dtype))


def default_kinds(program: Program) -> dict[str, str]:
    """Kinds where no tensor header is at hand: matrices bf16, vectors f32."""
    return {
        name: "f32" if len(weight.shape) == 1 or weight.plain else "bf16" for name, weight in program.weights.items()
    }


def bind(program: Program, kinds: Mapping[str, str], stored_bytes: Mapping[str, int] | None = None) -> Program:
    """Says what each weight is held as (f32, bf16, i8, u4) and, where known, in how many bytes."""
    _expect(program, "plain", "bind")
    weights = {}
    for name, weight in program.weights.items():
        if name not in kinds:
            raise ConfigError(f"weight {name} has no kind", param=name)
        weights[name] = replace(weight, kind=kinds[name], stored_bytes=(stored_bytes or {}).get(name))
    return replace(program, weights=weights, stage="bound")


def quantize(program: Program, activations: str = "bf16") -> Program:
    """Puts a quantize before the input of every linear, once a value, and stores K and V as bf16.

    activations: bf16, int or int15 (the kind by who writes the value, see `_activation_kind`), or i8g32, i8row or i8x
    throughout. A value declared `act` keeps its name for the quantized form; what was computed in f32 is "NAME.f32".
    """
    _expect(program, "bound", "quantize")
    if activations not in ("bf16", *BY_WRITER, *THROUGHOUT):
        raise ConfigError(
            f"activations {activations!r}: not one of bf16, {', '.join([*BY_WRITER, *THROUGHOUT])}", param="activations"
        )
    eaten = {op.ins[0]: _activation_kind(program, op.ins[0], activations) for op in program.ops if op.kind in LINEARS}
    buffers = dict(program.buffers)
    full, eats = {}, {}  # value -> name of its f32 form, name of its quantized form
    for name in sorted(eaten):
        old = buffers[name]
        keeps = old.dtype == "act" and old.kind == "value"
        full[name], eats[name] = (f"{name}.f32", name) if keeps else (name, f"{name}.act")
        buffers[full[name]] = replace(old, name=full[name], dtype="f32")
        buffers[eats[name]] = Buffer(eats[name], old.shape, eaten[name])
    ops: list[Op] = []
    ready: set[str] = set()
    for op in program.ops:
        linear = op.kind in LINEARS
        if linear and op.ins[0] not in ready:
            name = op.ins[0]
            ops.append(Op("quantize", (full[name],), (eats[name],), (), {"kind": eaten[name]}))
            ready.add(name)
        ins = tuple((eats if linear else full).get(name, name) for name in op.ins)
        ops.append(replace(op, ins=ins, outs=tuple(full.get(name, name) for name in op.outs)))
    for name, buffer in buffers.items():
        if buffer.dtype == "act":
            buffers[name] = replace(buffer, dtype="f32")
    program = replace(program, ops=tuple(ops), buffers=buffers, stage="quantized")
    return store_caches(program, "bf16")


def _activation_kind(program: Program, name: str, activations: str) -> DType:
    """The one kind in which all its linears eat a value.

    int: i8g32 behind attention; i15q behind norms and glu, whose outliers eight bits lose (docs/fidelity.md); i15 where
    the logits come of it, or 8-bit gates; i15g32 for what nothing has levelled, such as the residual stream. Where a
    norm reads what comes of attention or glu, small as it may be, int15: i15 behind norms, i15g32 behind glu, and
    attention there.
    """
    if activations == "bf16":
        return "bf16"
    weights = {program.weights[op.weights[0]].kind for op in program.ops if op.kind in LINEARS and op.ins[0] == name}
    if not weights <= set(INTEGER_WEIGHTS):
        return "bf16"
    writer = next((op.kind for op in program.ops if name in op.outs), None)
    made = {op.outs[0] for op in program.ops if op.kind in LINEARS and op.ins[0] == name}
    normed = any(op.kind == "norm" and op.ins[0] in made for op in program.ops)
    capped = {op.outs[0] for op in program.ops if op.kind == "cap" and op.ins[0] in made}
    close = any(program.buffers[name].kind == "export" for name in made | capped)
    close |= "i8" in weights and any(op.kind == "glu" and made.intersection(op.ins) for op in program.ops)
    fifteen = activations == "int15" or _norms_branches(program)
    by_writer: dict[str | None, DType] = {
        "attention": "i15g32" if normed else "i8g32",
        "norm": "i15" if close or fifteen else "i15q",
        "glu": "i15g32" if fifteen else "i15q",
    }
    return THROUGHOUT.get(activations) or by_writer.get(writer, "i15g32")


def _norms_branches(program: Program) -> bool:
    """Whether a norm reads what comes of attention or glu, as Gemma's do."""
    writers = {name: op.kind for op in program.ops for name in op.outs}
    made = {op.outs[0] for op in program.ops if op.kind in LINEARS and writers.get(op.ins[0]) in ("attention", "glu")}
    return any(op.kind == "norm" and op.ins[0] in made for op in program.ops)


def activation_kinds(programs: Iterable[Program]) -> str:
    """The kinds in which the linears of lowered programs eat, as the numerics id has them."""
    values = {buffer.dtype for program in programs for buffer in program.buffers.values() if buffer.kind == "value"}
    return "+".join(sorted(values.intersection(ACTIVATION_KINDS))) or "f32"


def store_caches(program: Program, dtype: CacheDType) -> Program:
    """The same program with every cache tensor stored as `dtype`. i8: with one f32 scale a token and KV head, or a
    token and group of dims of a latent. Recurrent state stays f32."""
    scales = {name: count for op in program.ops for name, count in _scales_of(program, op).items()}

    def stored(tensor: CacheTensor) -> CacheTensor:
        return CacheTensor(tensor.name, tensor.elements, dtype, scales[tensor.name] if dtype == "i8" else 0)

    groups = tuple(
        group if group.rule == "state" else replace(group, tensors=tuple(map(stored, group.tensors)))
        for group in program.groups
    )
    buffers = {
        name: replace(buffer, dtype=dtype) if buffer.kind == "cache" else buffer
        for name, buffer in program.buffers.items()
    }
    return replace(program, groups=groups, buffers=buffers)


def _scales_of(program: Program, op: Op) -> dict[str, int]:
    """Scales a token of the caches that an operator writes, were they i8."""
    if op.kind == "latent_write":
        name = str(op.attrs["cache"])
        return {name: fixed_width(program.buffers[name]) // integer(op, "group")}
    return {str(op.attrs[name]): integer(op, "kv_heads") for name in ("cache_k", "cache_v") if name in op.attrs}


def fuse(program: Program) -> Program:
    """Joins the listed patterns; a value vanishes only if nothing else reads it and it is no export."""
    _expect(program, "quantized", "fuse")
    graph = _Graph(program)
    for pattern in (_gate_up, _norm, _act, _attention, _linear_add, _qkv):
        graph.rewrite(pattern)
    written = {name for op in graph.ops for name in op.outs}
    kept = {n: b for n, b in program.buffers.items() if b.kind != "value" or n in written}
    return replace(program, ops=tuple(graph.ops), buffers=kept, stage="fused")


class _Graph:
    """The operators of one program with who writes and who reads each value."""

    def __init__(self, program: Program) -> None:
        self.ops = list(program.ops)
        self.buffers = program.buffers
        self._index()

    def _index(self) -> None:
        self.writer = {name: op for op in self.ops for name in op.outs}
        self.readers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.ins:
                self.readers.setdefault(name, []).append(op)

    def only(self, name: str, *kinds: str) -> Op | None:
        """The operator of one of `kinds` that writes `name`, if the value has one reader and is kept for nobody."""
        op = self.writer.get(name)
        if op is None or op.kind not in kinds or self.buffers[name].kind != "value":
            return None
        return op if len(self.readers.get(name, ())) == 1 else None

    def rewrite(self, pattern: Callable[[_Graph, Op], _Match | None]) -> None:
        """Replaces every match by its fused operator."""
        gone: set[int] = set()
        fused: dict[int, Op] = {}
        for op in self.ops:
            match = None if id(op) in gone else pattern(self, op)
            if match is not None:
                gone.update(id(part) for part in match.fused.parts)
                fused[id(match.place)] = match.fused
        self.ops = [fused.get(id(op), op) for op in self.ops if id(op) not in gone or id(op) in fused]
        self._index()


@dataclass(frozen=True, slots=True)
class _Match:
    """A fused operator and the part in whose place it stands: its inputs are written before, its readers follow."""

    fused: Op
    place: Op


def _join(kind: str, parts: tuple[Op, ...], ins: tuple[str, ...], attrs: Mapping[str, Scalar], place: Op) -> _Match:
    """Weights: the matrices of the parts in order, then their biases."""
    leaves = [part for part in parts if part.weights]
    weights = [op.weights[0] for op in leaves] + [name for op in leaves for name in op.weights[1:]]
    last = parts if kind == "fused.qkv" else parts[-1:]
    return _Match(Op(kind, ins, tuple(op.outs[0] for op in last), tuple(weights), dict(attrs), parts), place)


def _norm(graph: _Graph, op: Op) -> _Match | None:
    """norm, quantize; over heads only with bf16."""
    norm = graph.only(op.ins[0], "norm") if op.kind == "quantize" else None
    if norm is not None and op.attrs["kind"] != "bf16" and norm.attrs["heads"]:
        return None
    return None if norm is None else _join("fused.norm", (norm, op), norm.ins, norm.attrs, op)


def _act(graph: _Graph, op: Op) -> _Match | None:
    """act, quantize"""
    act = graph.only(op.ins[0], "act") if op.kind == "quantize" else None
    return None if act is None else _join("fused.act", (act, op), act.ins, act.attrs, op)


def _attention(graph: _Graph, op: Op) -> _Match | None:
    """attention, quantize; integers only where heads are whole blocks with scales of their own."""
    if op.kind == "quantize" and op.attrs["kind"] == "bf16":
        latent = graph.only(op.ins[0], "latent_attention")
        if latent is not None:
            return _join("fused.latent_attention", (latent, op), latent.ins, latent.attrs, op)
    attention = graph.only(op.ins[0], "attention") if op.kind == "quantize" else None
    if attention is not None and op.attrs["kind"] != "bf16":
        width, heads = graph.buffers[op.ins[0]].shape[-1], attention.attrs["heads"]
        whole = isinstance(width, int) and isinstance(heads, int) and width // heads % 32 == 0
        if not whole or op.attrs["kind"] in WHOLE_ROWS:
            return None
    return None if attention is None else _join("fused.attention", (attention, op), attention.ins, attention.attrs, op)


def _gate_up(graph: _Graph, op: Op) -> _Match | None:
    """linear, linear, glu, quantize, both linears over one input (of the same experts), both with a bias or none.

    Without the quantize where that takes whole rows."""
    glu: Op | None = None
    if op.kind == "quantize" and op.attrs["kind"] not in WHOLE_ROWS:
        glu = graph.only(op.ins[0], "glu")
    elif op.kind == "glu" and all(r.attrs.get("kind") in WHOLE_ROWS for r in graph.readers.get(op.outs[0], ())):
        glu = op
    if glu is None:
        return None
    gate, up = (graph.only(name, *LINEARS) for name in glu.ins)
    if gate is None or up is None or gate.ins != up.ins or len(gate.weights) != len(up.weights):
        return None
    if gate.kind != up.kind:
        return None
    kind = "fused.expert_gate_up" if gate.kind == "expert_linear" else "fused.gate_up"
    parts = (gate, up, glu) if glu is op else (gate, up, glu, op)
    return _join(kind, parts, gate.ins, glu.attrs, op)


def _linear_add(graph: _Graph, op: Op) -> _Match | None:
    """linear, add; ins (what the linear eats, addend)."""
    if op.kind != "add" or op.ins[0] == op.ins[1]:
        return None
    for name, addend in (op.ins[::-1], op.ins):
        linear = graph.only(name, "linear")
        if linear is not None:
            return _join("fused.linear_add", (linear, op), (linear.ins[0], addend), {}, op)
    return None


def _qkv(graph: _Graph, op: Op) -> _Match | None:
    """Exactly three linears over one input, all with a bias or none."""
    if op.kind != "linear":
        return None
    linears = tuple(other for other in graph.readers[op.ins[0]] if other.kind == "linear")
    if len(linears) != 3 or len({len(linear.weights) for linear in linears}) != 1:
        return None
    return _join("fused.qkv", linears, op.ins, {}, linears[0])


def _expect(program: Program, stage: str, name: str) -> None:
    if program.stage != stage:
        raise EngineError(f"{program.name}: {name} takes a {stage} program, not a {program.stage} one")
