"""Attention alone: decode in bytes a second beside what memory gives for the same pages, prefill in FLOPs a second.

    PYTHONPATH=src python bench/attention.py [--requests 32 --context 2048 --kv bf16 i8]
        [--prefill 512 2048] [--block-tokens 16 32]

A program of nothing but embeddings, KV writes and attention; its caches hold random keys and values in shuffled blocks.
Decode: every request computes one token. Everything that is compared is measured in turn, round after round, in this
one process; figures are medians over the rounds. random: blocks of one layer read in shuffled order by a loop that
does nothing else, the better of with and without fetching ahead; sequential: the same memory in order.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo import _native
from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.program.builder import Builder
from octavo.program.cost import op_cost
from octavo.program.ir import Program
from octavo.request import Row, TableUpdate
from octavo.runner.batch import HeaderWriter
from octavo.types import KVGroup, StepShape
from octavo.weights.kinds import Tensor

VOCABULARY = 512
CHUNK = 512
AHEAD = 16384  # bytes


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    d: int
    layers: int


def build(name: str, shape: Shape, *, attend: bool) -> Program:
    """Random queries, keys and values a layer; attention over them, or the writing of them alone."""
    b = Builder(name)
    group = b.group(KVGroup("full", "full"))
    sizes = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    for value, heads in sizes.items():
        b.embed(value, "token", b.weight(f"w{value}", (VOCABULARY, heads * shape.d), hf="", gguf=""))
    for layer in range(shape.layers):
        caches = {
            "cache_k": b.cache(group, f"{layer}.k_cache", shape.kv_heads * shape.d),
            "cache_v": b.cache(group, f"{layer}.v_cache", shape.kv_heads * shape.d),
        }
        kv = b.kv_write(f"{layer}.kv", "k", "v", **caches, kv_heads=shape.kv_heads)
        if attend:
            b.attention(
                f"{layer}.a", "q", kv, **caches, heads=shape.heads, kv_heads=shape.kv_heads, scale=shape.d**-0.5
            )
    return b.build()


class Bench:
    """One KV type and block size: its session and the times of its rounds."""

    def __init__(self, kv: str, block: int, shape: Shape, args: argparse.Namespace) -> None:
        self.kv, self.block, self.shape, self.threads = kv, block, shape, args.threads
        self.requests, self.context = requests, context = args.requests, args.context
        executor = executor_for("native")
        plain = {"fill": build("fill", shape, attend=False), "main": build("main", shape, attend=True)}
        kinds = {f"w{value}": "bf16" for value in "qkv"}
        self.programs = {name: executor.lower(program, kinds, kv_dtype=kv) for name, program in plain.items()}
        blocks = -(-(context + 1) // block)
        self.limits = Limits(CHUNK, CHUNK, requests, context + 1, requests * blocks + 1, block)
        rng = np.random.default_rng(0)
        tensors = [
            (name, Tensor("bf16", weight.shape, _bf16(rng.standard_normal(weight.shape))))
            for name, weight in self.programs["main"].weights.items()
        ]
        self.session = executor.open(
            self.programs, lambda: iter(tensors), self.limits, threads=args.threads, isa=args.isa
        )
        order = list(range(1, requests * blocks + 1))
        random.Random(0).shuffle(order)
        self.tables = [
            TableUpdate(slot, 0, 0, tuple(order[slot * blocks : (slot + 1) * blocks])) for slot in range(requests)
        ]
        self.writer = HeaderWriter(CHUNK, CHUNK, requests)
        for slot in range(requests):
            for at in range(0, context, CHUNK):
                self._run("fill", [self._row(slot, at, min(CHUNK, context - at))])
        self.times: list[float] = []
        self.memory: dict[str, list[float]] = {}

    def _row(self, slot: int, start: int, count: int) -> Row:
        tokens = tuple((slot * 31 + start + i) * 7919 % VOCABULARY for i in range(count))
        return Row(str(slot), slot, start, tokens, count - 1, sample=False)

    def _run(self, program: str, rows: list[Row]) -> None:
        header = self.writer.write(rows, tables=self.tables)
        self.tables = []
        self.session.run(program, header)

    def _attention(self, rows: list[Row]) -> float:
        """Seconds of all layers' attention in one step: all of it less what the other operators took."""
        others = self._others(on=True)
        start = time.perf_counter()
        self._run("main", rows)
        return time.perf_counter() - start - (self._others(on=False) - others)

    def _others(self, *, on: bool) -> float:
        return sum(seconds for name, seconds in self.session.profile("main", on=on) if not name.endswith(".a"))

    def decode(self) -> None:
        self.times.append(self._attention([self._row(slot, self.context, 1) for slot in range(self.requests)]))

    def prefill(self, context: int) -> float:
        """GFLOP/s of one prompt of `context` tokens, its last chunk alone where it has several."""
        start = max(0, context - CHUNK)
        seconds = self._attention([self._row(0, start, context - start)])
        return self.flops((context - start,), (start,)) / seconds * 1e-9

    def flops(self, rows: tuple[int, ...], contexts: tuple[int, ...]) -> int:
        return self._cost(StepShape(rows, contexts, 1)).flops

    def _cost(self, shape: StepShape) -> Any:
        program = self.programs["main"]
        costs = [op_cost(program, op, shape) for op in program.ops if op.kind.endswith("attention")]
        return sum(costs[1:], costs[0])

    @property
    def bytes(self) -> int:
        return self._cost(StepShape.decode(self.requests, self.context)).cache_bytes

    def read(self) -> None:
        """Reads what decode reads, in blocks of one layer, shuffled and in order."""
        memory = self.session.cache_bytes()
        piece = memory.shape[1] // self.shape.layers
        offsets = np.arange(piece * self.shape.layers, memory.nbytes - piece + 1, piece, dtype=np.int64)
        shuffled = np.random.default_rng(1).permutation(offsets)
        for name, places, ahead in (
            ("random", shuffled, 0),
            ("random, fetched ahead", shuffled, -(-AHEAD // piece)),
            ("sequential", offsets, 0),
        ):
            seconds = _native.read_seconds(
                memory.ctypes.data, places.ctypes.data, len(places), piece, self.threads, ahead
            )
            self.memory.setdefault(name, []).append(len(places) * piece / seconds)

    def row(self) -> str:
        seconds = statistics.median(self.times)
        rate = self.bytes / seconds
        random_rate = max(statistics.median(self.memory[name]) for name in self.memory if name != "sequential")
        sequential = statistics.median(self.memory["sequential"])
        return (
            f"| {self.kv} | {self.block} | {self.requests} x {self.context} | {seconds / self.shape.layers * 1e3:.3f} "
            f"| {rate * 1e-9:.1f} | {random_rate * 1e-9:.1f} | {rate / random_rate:.0%} | {sequential * 1e-9:.1f} "
            f"| {self.requests * self.shape.layers / seconds:,.0f} |"
        )


def _bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description="attention against the limits of memory")
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6, help="so many that no cache of the processor holds all")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--kv", nargs="+", default=["bf16", "i8"])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--block-tokens", type=int, nargs="+", default=[16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    shape = Shape(args.heads, args.kv_heads, args.head_dim, args.layers)
    benches = [Bench(kv, block, shape, args) for kv in args.kv for block in args.block_tokens]
    for _ in range(args.rounds):
        for bench in benches:
            bench.decode()
            bench.read()
    print("| KV | block | requests x context | ms a layer | GB/s | random | of it | sequential | tokens x layers/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for bench in benches:
        print(bench.row())
    for context in args.prefill:
        if context > args.context:
            continue
        rates: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for bench in benches:
                rates.setdefault(f"{bench.kv}, blocks of {bench.block}", []).append(bench.prefill(context))
        for name, found in rates.items():
            print(f"prefill at {context}, {name}: {statistics.median(found):.0f} GFLOP/s")


if __name__ == "__main__":
    main()
