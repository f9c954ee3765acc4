"""Steps of the native session by themselves, every operator timed: decoding at a batch, and a prompt.

No scheduler and no sampling: one header is run again and again over caches filled with small numbers. Between bursts of
steps the roofs that bind them are measured anew, so that both are of the same minute of a machine that others share.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from octavo.backends.native.session import NativeSession
from octavo.config import EngineConfig
from octavo.drafters.null import no_drafter
from octavo.errors import UnsupportedError, UsageError
from octavo.program.cost import program_cost
from octavo.program.ir import Program
from octavo.program.limits import Roofs, at
from octavo.program.rules import entry_bytes
from octavo.request import Row, TableUpdate
from octavo.runner.batch import Header, HeaderWriter
from octavo.runner.calibration import FOOTPRINTS, PRODUCTS, Calibration, Gauge
from octavo.runner.roofline import Reading, readings
from octavo.runner.runner import TARGET, Loaded, Runner
from octavo.runner.source import Progress
from octavo.types import StepShape

FILL = 0x3C  # of every cache byte: 0.0115 as bf16, 60 as an integer
BURSTS, BURST_SECONDS = 5, 0.3
SURVEY_ROUNDS, SURVEY_RUNS, SURVEY_SECONDS = 2, 2, 0.4
UNITS = (512, 65536)  # bytes: the smallest and largest piece in which pages are read


@dataclass(frozen=True, slots=True)
class Workload:
    """`batch` requests that decode one token after `context` others; one prompt of `prompt` tokens, in steps of
    max_num_batched_tokens."""

    batch: int
    context: int
    prompt: int

    def __post_init__(self) -> None:
        for name in ("batch", "context", "prompt"):
            if getattr(self, name) < (name != "context"):
                raise UsageError(f"{name} is at least {int(name != 'context')}", param=name)

    def limits(self, config: EngineConfig) -> EngineConfig:
        """The configuration with room for this and no more."""
        length = max(self.context + 1, self.prompt)
        blocks = self.batch * -(-length // config.block_tokens)
        tokens = max(self.batch, config.max_num_batched_tokens)
        return replace(
            config,
            max_num_seqs=self.batch,
            max_num_batched_tokens=tokens,
            max_logit_rows=self.batch,
            max_model_len=length,
            num_blocks=blocks,
            kv_memory=None,
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """Medians over `steps` runs. tokens: computed in one run; step_seconds: of a whole run, hand-off included."""

    name: str
    tokens: int
    steps: int
    step_seconds: float
    operators: tuple[Reading, ...]
    roofs: Roofs

    @property
    def limit_seconds(self) -> float:
        return sum(each.limit_seconds for each in self.operators)

    @property
    def weight_seconds(self) -> float:
        """To read every weight once."""
        return sum(each.least["weights"] for each in self.operators)


@dataclass(frozen=True, slots=True)
class Measurement:
    """program: with the bytes that its weights are really streamed as."""

    loaded: Loaded
    program: Program
    decode: Phase
    prefill: Phase


def measure(config: EngineConfig, workload: Workload, calibration: Calibration, progress: Progress) -> Measurement:
    """Loads the model and runs both phases; a few seconds. Raises as Runner.open does."""
    if config.executor != "native":
        raise UnsupportedError("operators are timed on the native executor alone", param="executor")
    config = workload.limits(config)
    with workbench(config, progress) as bench:
        decode = bench.phase("decode", [bench.decode_step(workload)], calibration)
        prefill = bench.phase("prefill", bench.prompt_steps(workload, config.max_num_batched_tokens), calibration)
        return Measurement(bench.loaded, bench.program, decode, prefill)


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians of one shape of step: of the whole, hand-off included, and of each operator, in order."""

    shape: StepShape
    step_seconds: float
    operators: tuple[float, ...]


def _seconds(timed: Timed) -> float:
    return timed.step_seconds


@dataclass(frozen=True, slots=True)
class Survey:
    """One model over many shapes of steps."""

    program: Program
    steps: tuple[Timed, ...]


def survey(
    config: EngineConfig, decodes: Sequence[tuple[int, int]], prompts: Sequence[int], progress: Progress
) -> Survey:
    """decodes: (batch, context). prompts: tokens, each in one step. A second a shape, in rounds, of which the
    faster counts: other work on the machine only adds. Raises as `measure` does."""
    if config.executor != "native":
        raise UnsupportedError("operators are timed on the native executor alone", param="executor")
    loads = [Workload(batch, context, 1) for batch, context in decodes] + [Workload(1, 0, tokens) for tokens in prompts]
    most = Workload(*(max(getattr(load, name) for load in loads) for name in ("batch", "context", "prompt")))
    config = most.limits(replace(config, max_num_batched_tokens=max(config.max_num_batched_tokens, most.prompt)))
    with workbench(config, progress) as bench:
        steps = [bench.decode_step(load) for load in loads[: len(decodes)]]
        steps += [bench.prompt_steps(load, load.prompt)[0] for load in loads[len(decodes) :]]
        rounds = [[bench.timed(step) for step in steps] for _ in range(SURVEY_ROUNDS)]
        return Survey(bench.program, tuple(min(same, key=_seconds) for same in zip(*rounds, strict=True)))


@contextmanager
def workbench(config: EngineConfig, progress: Progress) -> Iterator[Workbench]:
    runner = Runner.open(config, no_drafter, progress)
    try:
        yield Workbench(runner)
    finally:
        runner.close()


Step = tuple[StepShape, Sequence[Row]]


class Workbench:
    """An open session whose slots own all their blocks, in shuffled order."""

    def __init__(self, runner: Runner) -> None:
        session = runner.session
        if not isinstance(session, NativeSession):
            raise UnsupportedError("operators are timed on the native executor alone", param="executor")
        self.loaded = runner.loaded
        self._session = session
        limits = self.loaded.limits
        streamed = session.weight_bytes()
        program = self.loaded.programs[TARGET]
        weights = {name: replace(w, stored_bytes=streamed[name]) for name, w in program.weights.items()}
        self.program = replace(program, weights=weights)
        self._random = random.Random(0)
        session.cache_bytes()[:] = FILL
        order = list(range(1, limits.num_blocks))
        self._random.shuffle(order)
        per = limits.max_blocks
        self._tables = [
            TableUpdate(slot, group, 0, tuple(order[slot * per : (slot + 1) * per]))
            for group in range(len(self.loaded.groups))
            for slot in range(limits.max_seqs)
        ]

    def rows(self, batch: int, context: int, tokens: int) -> list[Row]:
        """Of so many requests, so many tokens each after `context` others, all with logits."""
        return [self._row(slot, context, tokens, first=0) for slot in range(batch)]

    def seconds(self, header: Header) -> float:
        """Of one step, nothing else measured."""
        begin = time.perf_counter()
        self._session.run(TARGET, header)
        return time.perf_counter() - begin

    def decode_step(self, workload: Workload) -> Step:
        rows = [self._row(slot, workload.context, 1) for slot in range(workload.batch)]
        return StepShape.decode(workload.batch, workload.context), rows

    def prompt_steps(self, workload: Workload, most: int) -> list[Step]:
        """A prompt's chunks; logits of its last token alone."""
        steps: list[Step] = []
        for start in range(0, workload.prompt, most):
            tokens = min(most, workload.prompt - start)
            last = start + tokens == workload.prompt
            row = self._row(0, start, tokens)
            steps.append((StepShape((tokens,), (start,), int(last)), [_asking(row, last)]))
        return steps

    def phase(self, name: str, steps: Sequence[Step], calibration: Calibration) -> Phase:
        """Runs the steps for a while, in bursts with a measurement of the roofs before each."""
        shapes = [shape for shape, _ in steps]
        headers = [self.header(rows) for _, rows in steps]
        meter = _Meter(self.program, shapes, self.loaded, calibration)
        walls: list[float] = []
        times: list[list[float]] = []
        for _ in range(BURSTS):
            meter.read()
            end = time.perf_counter() + BURST_SECONDS
            self._run(headers)  # brings the model back into the caches
            while True:
                wall, each = self._run(headers)
                walls.append(wall)
                times.append(each)
                if time.perf_counter() >= end:
                    break
        seconds = [statistics.median(column) for column in zip(*times, strict=True)]
        roofs = meter.roofs()
        found = tuple(readings(self.program, shapes, seconds, roofs))
        return Phase(name, sum(s.tokens for s in shapes), len(walls), statistics.median(walls), found, roofs)

    def timed(self, step: Step) -> Timed:
        """Of a short step many runs, the first for the caches alone; of a long one SURVEY_RUNS."""
        headers = [self.header(step[1])]
        runs = [self._run(headers)]
        if runs[0][0] < SURVEY_SECONDS:
            runs.clear()
        end = time.perf_counter() + SURVEY_SECONDS
        while len(runs) < SURVEY_RUNS or time.perf_counter() < end:
            runs.append(self._run(headers))
        columns = zip(*(each for _, each in runs), strict=True)
        seconds = tuple(statistics.median(column) for column in columns)
        return Timed(step[0], statistics.median(wall for wall, _ in runs), seconds)

    def _run(self, headers: Sequence[Header]) -> tuple[float, list[float]]:
        """Seconds of all the steps, and of each operator."""
        before = self._session.profile(TARGET, on=True)
        begin = time.perf_counter()
        for header in headers:
            self._session.run(TARGET, header)
        wall = time.perf_counter() - begin
        after = self._session.profile(TARGET, on=False)
        return wall, [late - early for (_, early), (_, late) in zip(before, after, strict=True)]

    def header(self, rows: Sequence[Row]) -> Header:
        tables, self._tables = self._tables, []
        return HeaderWriter(sum(len(row.token_ids) for row in rows), len(rows), len(rows)).write(rows, tables=tables)

    def _row(self, slot: int, start: int, tokens: int, first: int = -1) -> Row:
        """first: whose logits are wanted first; -1: the last token's."""
        ids = tuple(self._random.randrange(self.loaded.vocab_size) for _ in range(tokens))
        return Row(str(slot), slot, start, ids, first % tokens, True)


def _asking(row: Row, wanted: bool) -> Row:
    """The row with logits of its last token, or of none."""
    return row if wanted else Row(row.request_id, row.slot, row.start, row.token_ids, len(row.token_ids), False)


class _Meter:
    """Measures, again and again, the roofs that bind some steps; the median of what it saw is the roof."""

    def __init__(self, program: Program, shapes: Sequence[StepShape], loaded: Loaded, calibration: Calibration) -> None:
        costs = [program_cost(program, shape) for shape in shapes]
        footprint = max(cost.weight_bytes + cost.cache_bytes for cost in costs)
        entry = max((entry_bytes(program, op) for op in program.ops), default=0)
        unit = entry * loaded.limits.block_tokens // UNITS[0] * UNITS[0]
        self._footprint = footprint
        self._read = max(FOOTPRINTS[0] * loaded.threads, min(footprint, FOOTPRINTS[-1]))
        self._unit = min(max(unit, UNITS[0]), UNITS[1])
        self._threads = loaded.threads
        self._calibration = calibration
        self._kinds = [kind for kind in PRODUCTS if kind in calibration.products[loaded.threads]]
        self._gauge = Gauge(loaded.isa, loaded.threads, self._read)
        self._seen: dict[str, list[float]] = {}

    def read(self) -> None:
        figures = {
            "weights": self._gauge.read(self._threads, self._read),
            "cache": self._gauge.read(self._threads, self._read, self._unit),
        }
        for kind in self._kinds:
            figures[kind] = self._gauge.product(self._threads, kind) or 0.0
        for name, figure in figures.items():
            self._seen.setdefault(name, []).append(figure)

    def roofs(self) -> Roofs:
        """Reading as it was in the middle of what was seen, for it changes with what else the machine does, but never
        less than one thread reached alone; products at their best."""
        one, paged = self._calibration.sequential[1], next(iter(self._calibration.random[1].values()))
        reads = {
            name: max(statistics.median(self._seen[name]), at(curve, self._read))
            for name, curve in (("weights", one), ("cache", paged))
        }
        best = {kind: max(self._seen[kind], default=0.0) for kind in self._kinds}
        products = {
            kind: max(best.get(kind, 0.0), best.get(f"{kind} tile", 0.0), self._calibration.product_rate(kind))
            for kind in ("f32", "bf16", "int8")
        }
        return Roofs(
            footprint=self._footprint,
            weights=reads["weights"],
            cache=reads["cache"],
            values=self._calibration.read_rate,
            products=products,
            barrier=self._calibration.barrier if self._threads > 1 else 0.0,
        )
