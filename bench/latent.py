"""Attention over latents alone: decode and prefill in bytes of cache and in FLOPs a second.

    PYTHONPATH=src python bench/latent.py [--heads 16 64 128 --context 4096 --requests 1 8 --top-k 0 2048 --kv bf16 i8]

A program of nothing but embeddings, cache writes and attention; with --top-k an index of 32 heads chooses the keys.
One head of queries makes 1,088 products of every 576 dims of the cache, so from eight heads on a core is short of
products before memory is: the column of FLOPs is the one to look at. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.program.builder import Builder
from octavo.program.cost import op_cost
from octavo.program.ir import Program
from octavo.program.latent import index_topk, latent_attention, latent_write
from octavo.request import Row, TableUpdate
from octavo.runner.batch import HeaderWriter
from octavo.types import KVGroup, StepShape
from octavo.weights.kinds import Tensor

VOCABULARY, CHUNK, LAYERS = 64, 512, 3
RANK, ROTATED, INDEX_HEADS, INDEX_DIM = 512, 64, 32, 128


def build(heads: int, top_k: int) -> Program:
    b = Builder("main")
    group = b.group(KVGroup("full", "full"))
    widths = {"c": RANK, "k": ROTATED, "q": heads * RANK, "qr": heads * ROTATED}
    index = {"iq": INDEX_HEADS * INDEX_DIM, "ik": INDEX_DIM, "iw": INDEX_HEADS} if top_k else {}
    for name, width in (widths | index).items():
        b.embed(name, "token", b.weight(f"w{name}", (VOCABULARY, width), hf="", gguf=""))
    for layer in range(LAYERS):
        cache = b.cache(group, f"{layer}.latents", RANK + ROTATED)
        kv = latent_write(b, f"{layer}.kv", ("c", "k"), cache)
        chosen = None
        if top_k:
            keys = b.cache(group, f"{layer}.index", INDEX_DIM)
            written = latent_write(b, f"{layer}.ikv", ("ik",), keys)
            sizes = {"heads": INDEX_HEADS, "top_k": top_k}
            chosen = index_topk(b, f"{layer}.idx", "iq", "iw", written, cache=keys, scale=1.0, **sizes)
        latent_attention(b, f"{layer}.a", ("q", "qr"), kv, cache=cache, heads=heads, scale=192**-0.5, chosen=chosen)
    return b.build()


def measure(heads: int, top_k: int, kv: str, args: argparse.Namespace) -> None:
    executor = executor_for("native")
    plain = build(heads, top_k)
    program = executor.lower(plain, dict.fromkeys(plain.weights, "bf16"), kv_dtype=kv)
    most, context = max(args.requests), args.context
    blocks = -(-(context + 1) // 16)
    limits = Limits(CHUNK, CHUNK, most, context + 1, most * blocks + 1, 16)
    rng = np.random.default_rng(0)
    tensors = [
        (
            name,
            Tensor(
                "bf16",
                w.shape,
                (rng.standard_normal(w.shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
            ),
        )
        for name, w in plain.weights.items()
    ]
    session = executor.open({"main": program}, lambda: iter(tensors), limits, threads=args.threads)
    order = np.random.default_rng(1).permutation(np.arange(1, most * blocks + 1)).tolist()
    tables = [TableUpdate(slot, 0, 0, tuple(order[slot * blocks : (slot + 1) * blocks])) for slot in range(most)]
    writer = HeaderWriter(CHUNK, CHUNK, most)

    def run(rows: list[Row]) -> dict[str, float]:
        nonlocal tables
        header, tables = writer.write(rows, tables=tables), []
        before = dict(session.profile("main", on=True))
        session.run("main", header)
        return {name: seconds - before[name] for name, seconds in session.profile("main", on=False)}

    def row(slot: int, start: int, count: int) -> Row:
        tokens = tuple((slot * 31 + start + i) * 7919 % VOCABULARY for i in range(count))
        return Row(str(slot), slot, start, tokens, count - 1, sample=False)

    for slot in range(most):
        for at in range(0, context, CHUNK):
            taken = run([row(slot, at, min(CHUNK, context - at))])
    cases = {f"prefill, last {CHUNK}": (taken, StepShape((CHUNK,), (context - CHUNK,), 1))}
    for requests in args.requests:
        rounds = [run([row(slot, context, 1) for slot in range(requests)]) for _ in range(args.rounds)]
        middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        cases[f"decode {requests}"] = (middle, StepShape.decode(requests, context))
    for case, (seconds, shape) in cases.items():
        for kind, end in (("attention", ".a"), ("index", ".idx")):
            ops = [op for op in program.ops if op.outs[0].endswith(end)]
            if not ops:
                continue
            spent = sum(seconds[op.outs[0]] for op in ops)
            cost = sum((op_cost(program, op, shape) for op in ops[1:]), op_cost(program, ops[0], shape))
            print(
                f"| {heads} | {top_k or 'all'} | {kv} | {case} | {kind} | {spent / LAYERS * 1e3:.3f} "
                f"| {cost.cache_bytes / spent * 1e-9:.1f} | {cost.flops / spent * 1e-9:.0f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="attention over latents against the limits of the machine")
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--top-k", type=int, nargs="+", default=[0])
    parser.add_argument("--kv", nargs="+", default=["bf16", "i8"])
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    print("| heads | keys | KV | step | operator | ms a layer | GB/s | GFLOP/s |\n|---|---|---|---|---|---|---|---|")
    for heads in args.heads:
        for top_k in args.top_k:
            for kv in args.kv:
                measure(heads, top_k, kv, args)


if __name__ == "__main__":
    main()
