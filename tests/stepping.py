"""Drives a session by hand: lays out headers and block tables, so that a test says only which tokens a step holds."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from octavo.backends.port import Limits
from octavo.program.header import FIELDS, FLAG_NO_WRITE, NUM_SCALARS, VERSION, offsets


@dataclass(frozen=True)
class Run:
    """Tokens of one slot from index `start` on. parents: per token, offset in the run of a tree draft's parent, or -1
    for a token that follows the one before it. logits_from: offset of the first token whose logits are wanted. drafts:
    the last tokens, which enter no recurrent state; replay, restore, snapshots: as in request.StateStep."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    logits_from: int = 0
    parents: tuple[int, ...] = ()
    no_write: tuple[int, ...] = ()
    drafts: int = 0
    replay: int = 0
    restore: int = 0
    snapshots: tuple[tuple[int, int], ...] = ()


def header(runs: list[Run], tables: list[int] = (), copies: list[tuple[int, int, int]] = ()) -> np.ndarray:
    """The step header of these runs, in order."""
    fields: dict[str, list[int]] = {name: [] for name in FIELDS}
    fields["row_begin"].append(0)
    for number, run in enumerate(runs):
        first, depth = len(fields["token"]), {}
        for offset, token in enumerate(run.tokens):
            parent = run.parents[offset] if run.parents else -1
            depth[offset] = run.start + offset if parent < 0 else depth[parent] + 1
            fields["token"].append(token)
            fields["position"].append(depth[offset])
            fields["index"].append(run.start + offset)
            fields["request"].append(number)
            fields["adapter"].append(0)
            fields["flags"].append(FLAG_NO_WRITE if offset in run.no_write else 0)
            fields["parent"].append(-1 if parent < 0 else first + parent)
            fields["source_row"].append(first + offset)
            if offset >= run.logits_from:
                fields["logit_row"].append(first + offset)
        fields["slot"].append(run.slot)
        fields["row_begin"].append(len(fields["token"]))
        fields["context"].append(run.start)
        fields["firm"].append(len(run.tokens) - run.drafts)
        fields["replay"].append(run.replay)
        fields["restore"].append(run.restore)
        fields["snapshots"] += [word for after, snapshot in run.snapshots for word in (number, after, snapshot)]
    fields["copies"] = [word for copy in copies for word in copy]
    fields["tables"] = list(tables)
    counts = (len(fields["token"]), len(fields["logit_row"]), len(runs), len(copies))
    counts = (*counts, len(fields["snapshots"]) // 3, len(tables))
    where = offsets(*counts)
    words = np.zeros(where["tables"][1], dtype=np.int32)
    words[:NUM_SCALARS] = (VERSION, *counts)
    for name, (begin, end) in where.items():
        words[begin:end] = fields[name]
    return words


class Stepper:
    """One session with a block table per slot that is complete from the first step on, in shuffled blocks.

    reuse: poison every block with NaN first, as free blocks of a running server may hold anything.
    """

    def __init__(self, executor, program, tensors, *, slots=4, length=256, block_tokens=16, lower=True, snapshots=0):
        kinds = {name: tensors[name].kind for name in program.weights}
        self.program = executor.lower(program, kinds) if lower else program
        blocks = -(-length // block_tokens)
        limits = Limits(4096, 4096, slots, length, slots * blocks + 1, block_tokens, snapshots)
        programs = {"main": self.program}
        self.session = executor.open(programs, lambda: ((n, tensors[n]) for n in program.weights), limits, threads=1)
        self.session.cache_bytes()[:] = 0xFF
        order = list(range(1, slots * blocks + 1))
        random.Random(0).shuffle(order)
        self.tables = []
        for group in range(len(self.program.groups)):
            for slot in range(slots):
                mine = order[slot * blocks : (slot + 1) * blocks]
                self.tables += [slot, group, 0, blocks, *mine]

    def step(self, *runs: Run, copies=()) -> np.ndarray:
        """Logits [R, V] of one step, or what else the program exports, copied."""
        words = header(list(runs), self.tables, list(copies))
        self.tables = []
        self.session.run("main", words)
        exports = self.program.exports
        return self.session.view("logits" if "logits" in exports else exports[0]).copy()

    def prompt(self, tokens, *, slot=0, chunk=None) -> np.ndarray:
        """Logits of every token, computed in chunks."""
        size = chunk or len(tokens)
        steps = [self.step(Run(slot, at, tuple(tokens[at : at + size]))) for at in range(0, len(tokens), size)]
        return np.concatenate(steps)

    def greedy(self, tokens, count, *, slot=0, chunk=None) -> list[int]:
        """The prompt, then `count` tokens one by one, each the argmax."""
        logits, out = self.prompt(tokens, slot=slot, chunk=chunk)[-1], []
        while True:
            out.append(int(logits.argmax()))
            if len(out) == count:
                return out
            logits = self.step(Run(slot, len(tokens) + len(out) - 1, (out[-1],)))[-1]
