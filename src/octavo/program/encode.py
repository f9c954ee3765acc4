"""A lowered program as flat little-endian int32 words: besides weights the only thing that native code gets.

    magic, version, name | groups: name, drafts that a slot of its state can replay (-1: it has blocks)
    caches: name, group, kv heads, d, is key, dtype | states: name, floats, tail | weights: name | regions
    buffers: name, kind, header field, dtype, symbol, a, b, width, ld, region
    ops: kind, name, barrier, ins, outs, weights, caches, states, ints, floats    (ids into the lists above)

A list is its length and its items; a text is its length in bytes and the bytes, padded to words. native/program.h
decodes it. Barriers are decided here, from what each operator reads and writes and how its work is split.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from octavo.errors import UnsupportedError
from octavo.program import experts, latent, recurrence
from octavo.program.arena import Arena, place, rows_of, width_of
from octavo.program.ir import Buffer, Op, Program
from octavo.program.rules import CACHES, Numbers, integer, number
from octavo.types import CacheTensor, KVGroup

MAGIC, VERSION = 0x4F435456, 5
HEADER_IDS = {
    name: i for i, name in enumerate(("token", "position", "index", "request", "adapter", "source_row", "logit_row"))
}
KINDS = {"header": 0, "value": 1, "export": 2, "foreign": 3}
DTYPES = {"f32": 0, "bf16": 1, "i32": 2, "i15": 3, "i8g32": 4, "i15g32": 5, "i8row": 6, "i8x": 7, "i15q": 8}
SYMBOLS = {"T": 1, "R": 2, "N": 3}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "clamped": 4}
GATED = ("silu", "gelu_tanh", "clamped")
CAP = 3  # among the activations
RULES = {"rms": 0, "layer": 1, "l2": 2}
POOLS = {"last": 0, "mean": 1, "cls": 2}
CACHE_DTYPES = {"bf16": 0, "i8": 1}
LAYOUTS = {"values": 0, "keys": 1, "rows": 2}
PAGE_TOKENS = 16  # of the caches' layout: a block holds whole pages
LANES = 16  # rows of V are padded to whole vectors, and K with them

ROW_OPS = (
    *("embed", "feed", "norm", "fused.norm", "add", "concat", "glu", "act", "fused.act", "cap"),
    *("quantize", "rope_angles", "rope", "kv_write"),
    *experts.ROW_OPS,
    *latent.ROW_OPS,
    *recurrence.ROW_OPS,
)
CHOOSING_OPS = ("take", "combine")  # write by rows, read any


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How one cache tensor is laid out: native/cache.h; rows: native/latent.h, kv_heads is then the scales of one."""

    group: int
    kv_heads: int
    d: int
    layout: Literal["values", "keys", "rows"]
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Of 16 tokens of one KV head, or 16 rows."""
        if self.layout == "rows":
            return PAGE_TOKENS * (self.d + 4 * self.kv_heads if self.dtype == "i8" else self.d * 2)
        padded_d = -(-self.d // LANES) * LANES
        return PAGE_TOKENS * (padded_d + 4 if self.dtype == "i8" else padded_d * 2)

    def block_bytes(self, block_tokens: int) -> int:
        return block_tokens // PAGE_TOKENS * (1 if self.layout == "rows" else self.kv_heads) * self.page_bytes


def cache_shapes(program: Program) -> dict[str, CacheShape]:
    """Cache tensor -> shape, from the operators that touch it. Raises UnsupportedError for what no kernel stores."""
    tensors = {tensor.name: tensor for group in program.groups for tensor in group.tensors}
    shapes: dict[str, CacheShape] = {}
    for op in program.ops:
        if op.kind == "latent_write":
            tensor = tensors[str(op.attrs["cache"])]
            shapes[tensor.name] = _rows(program, tensor, integer(op, "group"))
        if "cache_k" not in op.attrs:
            continue
        kv_heads = integer(op, "kv_heads")
        for attr in ("cache_k", "cache_v"):
            tensor = tensors[str(op.attrs[attr])]
            d, rest = divmod(tensor.elements, kv_heads)
            if rest or tensor.dtype not in CACHE_DTYPES:
                raise UnsupportedError(
                    f"{tensor.name}: a cache of {kv_heads} heads, {tensor.elements} x {tensor.dtype}"
                )
            layout: Literal["keys", "values"] = "keys" if attr == "cache_k" else "values"
            shapes[tensor.name] = CacheShape(program.cache_group[tensor.name], kv_heads, d, layout, tensor.dtype)
    return shapes


def _rows(program: Program, tensor: CacheTensor, group: int) -> CacheShape:
    if group % LANES or tensor.dtype not in CACHE_DTYPES:
        raise UnsupportedError(f"{tensor.name}: rows of {tensor.elements} x {tensor.dtype}, {group} to a scale")
    return CacheShape(program.cache_group[tensor.name], tensor.elements // group, tensor.elements, "rows", tensor.dtype)


def encode(program: Program) -> bytes:
    """The words of the whole program."""
    arena = place(program)
    caches = cache_shapes(program)
    states = recurrence.native_states(program)
    ids = _Ids(program, caches, states)
    words = _Words()
    words.put(MAGIC, VERSION)
    words.text(program.name)
    words.records(program.groups, lambda group: _put_group(words, group))
    words.records(caches.items(), lambda item: _put_cache(words, *item))
    words.records(states.items(), lambda item: _put_state(words, *item))
    words.records(program.weights, words.text)
    words.put(arena.regions)
    words.records(ids.buffers, lambda name: _put_buffer(words, program.buffers[name], arena))
    flags = barrier_flags(program, arena)
    words.records(program.ops, lambda op: _put_op(words, op, ids, next(flags)))
    return words.bytes()


class _Words:
    def __init__(self) -> None:
        self._words = array("i")

    def put(self, *values: int) -> None:
        self._words.extend(values)

    def text(self, text: str) -> None:
        data = text.encode()
        self.put(len(data))
        self._words.frombytes(data + b"\0" * (-len(data) % 4))

    def list(self, values: Sequence[int]) -> None:
        self.put(len(values), *values)

    def floats(self, values: Sequence[float]) -> None:
        self.put(len(values))
        self._words.frombytes(struct.pack(f"{len(values)}f", *values))

    def records(self, items: Any, put: Callable[[Any], None]) -> None:
        self.put(len(items))
        for item in items:
            put(item)

    def bytes(self) -> bytes:
        return self._words.tobytes()


class _Ids:
    """Numbers of everything that has a name. Token values order operators and are not stored."""

    def __init__(self, program: Program, caches: Iterable[str], states: Iterable[str]) -> None:
        stored = [name for name, buffer in program.buffers.items() if buffer.dtype != "token" and buffer.kind in KINDS]
        self.buffers = {name: i for i, name in enumerate(stored)}
        self.weights = {name: i for i, name in enumerate(program.weights)}
        self.caches = {name: i for i, name in enumerate(caches)}
        self.states = {name: i for i, name in enumerate(states)}


def _put_state(words: _Words, name: str, sizes: tuple[int, int]) -> None:
    words.text(name)
    words.put(*sizes)


def _put_group(words: _Words, group: KVGroup) -> None:
    words.text(group.name)
    words.put(group.tail if group.rule == "state" else -1)


def _put_cache(words: _Words, name: str, shape: CacheShape) -> None:
    words.text(name)
    words.put(shape.group, shape.kv_heads, shape.d, LAYOUTS[shape.layout], CACHE_DTYPES[shape.dtype])


def _put_buffer(words: _Words, buffer: Buffer, arena: Arena) -> None:
    size = rows_of(buffer)
    at = arena.places.get(buffer.name)
    words.text(buffer.name)
    words.put(KINDS[buffer.kind], HEADER_IDS.get(buffer.name, 0), DTYPES[buffer.dtype])
    words.put(SYMBOLS[size.symbol], size.a, size.b, width_of(buffer))
    words.put(at.ld if at else width_of(buffer), at.region if at else -1)


def _put_op(words: _Words, op: Op, ids: _Ids, barrier: bool) -> None:
    words.text(op.kind)
    words.text(op.outs[0])
    words.put(int(barrier))
    for names, known in ((op.ins, ids.buffers), (op.outs, ids.buffers), (op.weights, ids.weights)):
        words.list([known[name] for name in names if name in known])
    words.list([ids.caches[str(op.attrs[name])] for name in CACHES if name in op.attrs])
    words.list([ids.states[str(op.attrs["state"])]] if "state" in op.attrs else [])
    ints, floats = NUMBERS[op.kind](op) if op.kind in NUMBERS else ([], [])
    words.list(ints)
    words.floats(floats)


def _embed(op: Op) -> tuple[list[int], list[float]]:
    return [], [number(op, "scale")]


def _norm(op: Op) -> tuple[list[int], list[float]]:
    return [int(op.attrs["order"] == "gemma"), integer(op, "heads"), RULES[str(op.attrs["rule"])]], [number(op, "eps")]


def _glu(op: Op) -> tuple[list[int], list[float]]:
    if op.attrs["act"] not in GATED:
        raise UnsupportedError(f"{op.outs[0]}: no kernel for the activation {op.attrs['act']}")
    clamp = [number(op, name) if name in op.attrs else 0.0 for name in ("alpha", "limit")]
    return [ACTIVATIONS[str(op.attrs["act"])]], clamp


def _rope_angles(op: Op) -> tuple[list[int], list[float]]:
    return [], [number(op, "factor"), *cast(tuple[float, ...], op.attrs["inv_freq"])]


def _rope(op: Op) -> tuple[list[int], list[float]]:
    return [integer(op, "heads"), integer(op, "rotary")], []


def _attention(op: Op) -> tuple[list[int], list[float]]:
    sizes = [integer(op, name) for name in ("heads", "kv_heads", "window")]
    return [*sizes, int(bool(op.attrs["causal"]))], [number(op, "scale"), number(op, "cap")]


def _act(op: Op) -> tuple[list[int], list[float]]:
    return [ACTIVATIONS[str(op.attrs["act"])]], [1.0]


def _cap(op: Op) -> tuple[list[int], list[float]]:
    return [CAP], [number(op, "cap")]


def _pool(op: Op) -> tuple[list[int], list[float]]:
    return [POOLS[str(op.attrs["mode"])]], []


# Operators that are not here have no numbers.
NUMBERS: Mapping[str, Numbers] = {
    "embed": _embed,
    **dict.fromkeys(("norm", "fused.norm"), _norm),
    **dict.fromkeys(("glu", "fused.gate_up", "fused.expert_gate_up"), _glu),
    "rope_angles": _rope_angles,
    "rope": _rope,
    **dict.fromkeys(("attention", "fused.attention"), _attention),
    **dict.fromkeys(("act", "fused.act"), _act),
    "cap": _cap,
    "pool": _pool,
    **experts.NUMBERS,
    **latent.NUMBERS,
    **recurrence.NUMBERS,
}


def barrier_flags(program: Program, arena: Arena) -> Iterator[bool]:
    """Per operator: must all threads have finished everything before it?

    Threads split rows the same way for all values of as many rows, so row operators over them follow one another
    freely. Any other pair of accesses to one region, of which one writes, needs a barrier between them.
    """
    seen: dict[object, set[tuple[bool, object]]] = {}
    for place_of_op, op in enumerate(program.ops):
        accesses = list(_accesses(program, arena, op, place_of_op))
        clash = any(
            (writes or wrote) and split != other
            for resource, writes, split in accesses
            for wrote, other in seen.get(resource, ())
        )
        if clash:
            seen.clear()
        for resource, writes, split in accesses:
            seen.setdefault(resource, set()).add((writes, split))
        yield clash


def _accesses(program: Program, arena: Arena, op: Op, number: int) -> Iterator[tuple[object, bool, object]]:
    """(region or cache, writes it, how the work on it is split). A split of its own never equals another."""
    for writes, names in ((False, op.ins), (True, op.outs)):
        for name in names:
            if name not in arena.places:
                continue
            buffer, at = program.buffers[name], arena.places[name]
            by_rows = op.kind in ROW_OPS or (op.kind in CHOOSING_OPS and writes)
            split: object = (rows_of(buffer), at.ld, buffer.dtype) if by_rows else (number, writes)
            yield at.region, writes, split
    if any(name in op.attrs for name in CACHES):
        writes = op.kind in ("kv_write", "latent_write")
        yield "caches", writes, "rows" if writes else number
