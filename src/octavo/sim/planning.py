"""Does it fit, how many users, how fast, what limits it, what would change it: from a program and a machine alone.

Memory is counted by the rules that size the engine's own cache; times are a StepModel's. Both are of one device where
several share a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.program.arena import place, rows_of, stride_bytes
from octavo.program.ir import Program
from octavo.program.rules import stored_bytes
from octavo.sim.machine import MachineModel
from octavo.sim.parallel import Parallel, is_expert
from octavo.sim.steps import Part, StepModel
from octavo.types import StepShape

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LOGIT_ROWS = 256  # of a step, at most
CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. requests 0: as many as fit. ttft, gap: seconds that a prompt of `prompt` tokens and a token
    may take; None: no limit."""

    context: int
    requests: int = 0
    prompt: int = 512
    ttft: float | None = None
    gap: float | None = None
    batch_tokens: int = 2048
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device. weights: by kind. per_token: of the cache, by group. per_request: whatever its length.
    tokenizer: 0 where it is in another memory."""

    total: int
    process: int
    weights: Mapping[str, int]
    values: int
    per_token: Mapping[str, float]
    per_request: float
    tokenizer: int = 0
    windows: Mapping[str, int] = field(default_factory=dict)  # tokens that a group keeps of a request, 0 for all

    @property
    def fixed(self) -> int:
        return self.process + self.tokenizer + sum(self.weights.values()) + self.values

    @property
    def spare(self) -> int:
        """For caches; below 0 when the weights alone do not fit."""
        return self.total - self.fixed

    def of_request(self, tokens: int, block: int) -> float:
        """Cache of a request of so many tokens, in whole blocks."""
        held = 0.0
        for group, size in self.per_token.items():
            window = self.windows.get(group, 0)
            kept = min(tokens, window + block) if window else tokens
            held += -(-kept // block) * block * size
        return held + self.per_request

    def requests(self, tokens: int, block: int) -> int:
        """How many of so many tokens fit at once."""
        each = self.of_request(tokens, block)
        return max(0, int(self.spare / each)) if each else 10**9

    def longest(self, requests: int, block: int, most: int) -> int:
        """The longest context, up to `most`, that so many requests can have at once; 0 when none."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.requests(middle, block) >= requests:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one copy of the model. decode: seconds of a step; token_rate: of one request; total_rate: of all."""

    batch: int
    context: int
    decode: float
    parts: tuple[Part, ...]

    @property
    def token_rate(self) -> float:
        return 1 / self.decode

    @property
    def total_rate(self) -> float:
        return self.batch / self.decode


@dataclass(frozen=True, slots=True)
class Plan:
    """fits: the wish, in memory. gap_batch: the most requests that decode together within the gap and fit."""

    wish: Wish
    machine: MachineModel
    parallel: Parallel
    memory: Memory
    batch: int
    fits: bool
    most_requests: int
    longest_context: int
    speed: Speed
    prefill: float
    prefill_parts: tuple[Part, ...]
    gap_batch: int
    steps: StepModel
    max_context: int

    def curve(self) -> dict[tuple[int, int], float]:
        """(batch, context) -> seconds of a step, where it fits."""
        contexts = sorted({min(context, self.max_context - 1) for context in CONTEXTS})
        return {
            (batch, context): self.steps.seconds(StepShape.decode(batch, context))
            for context in contexts
            for batch in BATCHES
            if self.memory.requests(context, self.wish.block_tokens) >= batch
        }

    @property
    def ttft_met(self) -> bool:
        return self.wish.ttft is None or self.prefill <= self.wish.ttft

    @property
    def gap_met(self) -> bool:
        return self.wish.gap is None or self.speed.decode <= self.wish.gap

    @property
    def met(self) -> bool:
        return self.fits and self.ttft_met and self.gap_met


def plan(
    program: Program, machine: MachineModel, wish: Wish, parallel: Parallel, *, max_context: int, drafts: float = 0.0
) -> Plan:
    """max_context: of the model. drafts: mean number of tokens that a drafter adds to a step."""
    steps = StepModel(program, machine, parallel)
    memory = memory_of(program, machine, parallel, wish.batch_tokens, wish.requests)
    context = min(wish.context, max_context)
    most = memory.requests(context, wish.block_tokens)
    batch = wish.requests or max(1, min(most, BATCHES[-1]))
    fits = memory.spare > 0 and most >= batch and wish.context <= max_context
    longest = memory.longest(max(wish.requests, 1), wish.block_tokens, max_context) if memory.spare > 0 else 0
    decode = steps.seconds(StepShape.decode(batch, context)) / (1 + drafts)
    parts = tuple(steps.parts(StepShape.decode(batch, context)))
    last = StepShape((min(wish.prompt, wish.batch_tokens),), (0,), 1)
    return Plan(
        wish=wish,
        machine=machine,
        parallel=parallel,
        memory=memory,
        batch=batch,
        fits=fits,
        most_requests=most,
        longest_context=longest,
        speed=Speed(batch, context, decode, parts),
        prefill=prefill_seconds(steps, wish.prompt, wish.batch_tokens),
        prefill_parts=tuple(steps.parts(last)),
        gap_batch=_gap_batch(steps, context, wish.gap, most),
        steps=steps,
        max_context=max_context,
    )


def prefill_seconds(steps: StepModel, tokens: int, batch_tokens: int) -> float:
    """A prompt alone, in chunks."""
    total = 0.0
    for start in range(0, tokens, batch_tokens):
        count = min(batch_tokens, tokens - start)
        total += steps.seconds(StepShape((count,), (start,), int(start + count == tokens)))
    return total


def memory_of(
    program: Program, machine: MachineModel, parallel: Parallel, batch_tokens: int, requests: int = 0
) -> Memory:
    """requests: that run at once; 0 when that is not known."""
    weights: dict[str, float] = {}
    experts = {name for op in program.ops if is_expert(op) for name in op.weights}
    for name, weight in program.weights.items():
        kind = weight.kind or "bf16"
        share = parallel.weight_share(experts=name in experts)
        weights[kind] = weights.get(kind, 0.0) + stored_bytes(weight) * share
    share = parallel.cache_share
    paged = [group for group in program.groups if group.rule != "state"]
    return Memory(
        total=machine.memory,
        process=machine.process,
        weights={kind: int(size) for kind, size in sorted(weights.items())},
        values=arena_bytes(program, batch_tokens, requests or LOGIT_ROWS),
        per_token={group.name: group.bytes_per_token * share for group in paged if group.bytes_per_token},
        per_request=sum(group.bytes_per_sequence for group in program.groups) * share,
        tokenizer=int(machine.entry * _vocabulary(program)),
        windows={group.name: group.window for group in paged if group.rule == "window"},
    )


def arena_bytes(program: Program, tokens: int, logit_rows: int) -> int:
    """Values of a step of so many tokens, of which so many want logits."""
    arena = place(program)
    shape = StepShape((tokens,), (0,), min(tokens, logit_rows, LOGIT_ROWS))
    regions: dict[int, int] = {}
    for name, at in arena.places.items():
        buffer = program.buffers[name]
        size = rows_of(buffer).at(shape) * stride_bytes(buffer)
        regions[at.region] = max(regions.get(at.region, 0), size)
    return sum(regions.values())


def _vocabulary(program: Program) -> int:
    """Entries: rows of the widest table that tokens are looked up in."""
    return max((program.weights[op.weights[0]].shape[0] for op in program.ops if op.kind == "embed"), default=0)


def _gap_batch(steps: StepModel, context: int, gap: float | None, most: int) -> int:
    """The most requests that decode together within the gap and fit; 0 when not one does."""
    if gap is None:
        return most
    low, high = 0, min(max(most, 1), 4096)
    while low < high:
        middle = (low + high + 1) // 2
        if steps.seconds(StepShape.decode(middle, context)) <= gap:
            low = middle
        else:
            high = middle - 1
    return low
