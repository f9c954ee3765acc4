"""The runner: a checkpoint, its program and an executor joined into steps. launch(plan), then finish() -> StepResult.

    checkpoint + program --lower--> executor.open --> session          once, by Runner.open
    plan --HeaderWriter--> session.run --logits--> outcome.sample --drafter--> StepResult      each step

Owns the session, the sampler, the drafter and the requests in flight. Logits live until the session's next run, so of
several launched plans the later ones run when the earlier ones are finished; runs are in plan order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from octavo.backends import executor_for
from octavo.backends.port import Executor, Kept, Limits, Session
from octavo.config import EngineConfig, VerifyRule
from octavo.drafters.kinds import drafter_for
from octavo.drafters.null import NullDrafter
from octavo.drafters.pace import Pace
from octavo.drafters.port import Drafter, DraftMaker, DraftRow, Proposal
from octavo.drafters.target import Target, matrices
from octavo.errors import ConfigError, ResourceError, UnsupportedError, UsageError
from octavo.grammar.structures import Structures
from octavo.model_config import ModelConfig
from octavo.program.ir import Program
from octavo.program.pooling import POOLED, Pooling
from octavo.program.recurrence import with_tail
from octavo.request import Request, Row, RowResult, StepPlan, StepResult
from octavo.runner import machine, outcome
from octavo.runner.batch import Header, HeaderWriter
from octavo.runner.capacity import Demand, num_snapshots, usable_blocks
from octavo.runner.model import target_program
from octavo.runner.source import Progress, WeightSource
from octavo.runner.table import Mates, RequestTable
from octavo.sampling.sampler import Cohort, MaskTime, Sampler
from octavo.types import KVGroup
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import cache_home, resolve
from octavo.weights.stated import model_config

_log = logging.getLogger("octavo.runner")
TARGET = "target"
LOGITS = "logits"
Asked = TypeVar("Asked")
SEEN = 8  # of so many steps without drafts one is timed: they are all alike


@dataclass(slots=True)
class Step:
    """A launched plan."""

    plan: StepPlan
    mates: Mates  # its requests, as they were at launch
    header: Header
    begun: float  # seconds, of any origin
    ran: bool = False
    drafting: float = 0.0  # seconds that a drafter took that is shown rows

    @property
    def decodes(self) -> bool:
        """Every row goes on by a token, with its drafts."""
        return all(row.sample and len(row.token_ids) == row.num_drafts + 1 for row in self.plan.rows)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What opening a model found out, for the scheduler and for ModelInfo. Sizes in bytes."""

    vocab_size: int
    limits: Limits
    groups: tuple[KVGroup, ...]
    numerics: str
    isa: str
    content_id: str
    threads: int
    weights_bytes: int
    kv_bytes_per_token: int
    load_seconds: float
    notes: tuple[str, ...]
    hit_backoff: int  # the drafter's, and so is
    lookahead: int
    programs: Mapping[str, Program]  # as lowered, by name
    pooling: Pooling | None  # None: the model generates
    verify: VerifyRule = "equal"


class Runner:
    """Made by `open`. `add` a request before a plan names it, `forget` it after its last delta."""

    def __init__(
        self, session: Session, loaded: Loaded, drafter: Drafter, depth: int, structures: Structures | None = None
    ) -> None:
        limits = loaded.limits
        self.loaded = loaded
        self._session = session
        self._sampler = Sampler(loaded.vocab_size, loaded.threads, structures, loaded.verify)
        self._requests = RequestTable()
        self._steps: deque[Step] = deque()
        sizes = (limits.max_tokens, limits.max_rows, limits.max_seqs)
        self._writers = [HeaderWriter(*sizes) for _ in range(depth)]
        self._draft_writer = HeaderWriter(*sizes)
        keeps_state = any(group.rule == "state" for group in loaded.groups)
        self._pace = Pace()
        self._latest: Step | None = None
        self._failed = False  # the drafter has: it is not asked again
        self._most = drafter.tail if keeps_state else drafter.max_draft  # drafts of a row
        self._drafter = drafter if self._most else NullDrafter()

    @classmethod
    def open(
        cls, config: EngineConfig, draft: DraftMaker, progress: Progress, structures: Structures | None = None
    ) -> Runner:
        """Loads the model. draft: makes its drafter. structures: of its vocabulary, for outputs that must have a form.

        Raises what errors.py lists for bad files, configurations and too little memory."""
        begun = time.monotonic()
        with _opened(config) as target:
            try:
                return cls._open(_Read.of(target, draft(target)), config, progress, begun, structures)
            except MemoryError:
                what = (
                    "no memory for the model at these limits: lower max_num_seqs, max_num_batched_tokens or num_blocks"
                )
                raise ResourceError(what) from None

    @staticmethod
    def demand(config: EngineConfig) -> Demand:
        """What the model and its drafter would need, by headers alone. Raises as `open` does, memory aside."""
        with _opened(config) as target:
            return _Read.of(target, drafter_for(config.speculate, target)).demand

    @classmethod
    def _open(
        cls,
        read: _Read,
        config: EngineConfig,
        progress: Progress,
        begun: float,
        structures: Structures | None,
    ) -> Runner:
        limits, source = _limits(config, read.demand), read.source
        threads = config.threads or machine.topology().threads
        kept = Kept(cache_home() / "packed", source.content()) if config.packed_cache == "on" else None
        session = read.executor.open(
            read.programs, lambda: source.stream(progress), limits, threads=threads, isa=config.isa, kept=kept
        )
        loaded = Loaded(
            vocab_size=read.model.vocab_size,
            limits=limits,
            groups=_groups(read.programs),
            numerics=session.numerics.id,
            isa=session.numerics.isa,
            content_id=read.content_id,
            threads=threads,
            weights_bytes=source.stored_bytes,
            kv_bytes_per_token=read.demand.block_bytes // config.block_tokens,
            load_seconds=time.monotonic() - begun,
            notes=(*read.model.warnings, *source.notes, *session.notes),
            hit_backoff=read.drafter.hit_backoff,
            lookahead=read.drafter.lookahead,
            programs=read.programs,
            pooling=read.pooling,
            verify=config.verify,
        )
        return cls(session, loaded, read.drafter, config.plans_outstanding, structures)

    # ---- requests
    def add(self, request: Request) -> None:
        """Raises UnsupportedError for what no program here computes."""
        if request.adapter:
            raise UnsupportedError(f"adapter {request.adapter!r}: adapters are not supported", param="adapter")
        self._requests.add(request)

    def forget(self, request_id: str) -> float:
        """Drops all state of a request that has ended; rows of it that are still in flight yield nothing. Seconds that
        the masks of its output took."""
        self._requests.forget(request_id)
        self._guarded(lambda: self._drafter.forget(request_id), None)
        return self._sampler.forget(request_id)

    @property
    def masks(self) -> MaskTime:
        """Of all requests."""
        return self._sampler.masks

    @property
    def session(self) -> Session:
        """For measuring steps alone: between plans."""
        return self._session

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    # ---- steps
    def launch(self, plan: StepPlan) -> None:
        begun, before = time.perf_counter(), self._latest
        writer = self._writers[plan.number % len(self._writers)]
        header = writer.write(plan.rows, copies=plan.copies, tables=plan.tables, states=plan.states)
        step = self._latest = Step(plan, self._requests.mates(plan.rows), header, begun)
        if before is not None and before.mates is step.mates:
            self._count(before, begun)
        self._steps.append(step)
        if len(self._steps) == 1:
            self._run(step)

    def finish(self) -> StepResult:
        """The result of the oldest launched plan."""
        step = self._steps.popleft()
        self._run(step)
        plan, table = step.plan, self._requests
        if (cohort := self._cohort(step)) is not None:
            decoded = outcome.decoded(cohort.sample(self._session.logits(LOGITS), step.header))
            return StepResult(plan.number, self._followed(step, decoded, step.mates.requests))
        alive = step.mates.requests
        if table.version != step.mates.version:
            alive = [request if table.alive(request) else None for request in alive]
        if self.loaded.pooling is not None:
            vectors = self._session.view(POOLED)
            return StepResult(plan.number, tuple(outcome.embeddings(vectors, plan.rows, alive)))
        seen = step.mates.processed or self._sampler.reads
        logits = self._session.view(LOGITS) if seen else self._session.logits(LOGITS)
        step.mates.part()
        rows = outcome.sample(self._sampler, logits, plan.rows, alive)
        return StepResult(plan.number, self._followed(step, tuple(map(outcome.brief, rows)), alive))

    def _cohort(self, step: Step) -> Cohort:
        """Of a step of decodes that want a token each and nothing else; None of any other."""
        if self.loaded.pooling is not None or step.mates.version != self._requests.version:
            return None
        return step.mates.cohort(self._sampler) if step.header.one_each else None

    def _followed(
        self, step: Step, results: tuple[RowResult | int, ...], alive: Sequence[Request | None]
    ) -> tuple[RowResult | int, ...]:
        """The results, with what the drafter proposes after them."""
        mates = step.mates
        served = self._served(mates)
        if not served:
            return results
        proposals: Sequence[Proposal] | None = None
        if alive is mates.requests and step.decodes:
            given = [outcome.tokens(results[place]) for place in mates.places]
            if all(given):
                nothing: Sequence[Proposal] | None = ()
                proposals = self._guarded(lambda: self._drafter.follow(self, served, given), nothing)
        if proposals is None:
            rows, begun = [RowResult((one,)) if isinstance(one, int) else one for one in results], time.perf_counter()
            rows = self._draft(step.plan.rows, alive, rows)
            step.drafting = time.perf_counter() - begun
            return tuple(map(outcome.brief, rows))
        if not proposals:
            return results
        found = list(results)
        for place, request, proposal in zip(mates.places, served, proposals, strict=True):
            if proposal.token_ids:
                one = found[place]
                found[place] = self._with(RowResult((one,)) if isinstance(one, int) else one, request, proposal)
        return tuple(found)

    def close(self) -> None:
        """Lets go of all that is native: threads of a process that ends may still know the runner."""
        self._session.close()
        self._steps.clear()
        self._latest = None
        for request_id in self._requests.names:
            self.forget(request_id)
        for writer in (*self._writers, self._draft_writer):
            writer.close()

    def _run(self, step: Step) -> None:
        if not step.ran:
            self._session.run(TARGET, step.header)
            step.ran = True

    def _count(self, step: Step, now: float) -> None:
        """How long the step took, where the next one is of the same requests: all that is done for it, but for the runs
        of a drafter, which counts them itself."""
        tokens, rows = step.plan.num_tokens, len(step.plan.rows)
        if step.plan.number % SEEN and tokens == rows and self._pace.knows(rows):
            return
        if self._served(step.mates) and step.decodes:
            self._pace.hear(tokens, now - step.begun - step.drafting)

    # ---- drafts
    def _draft(
        self, rows: Sequence[Row], requests: Sequence[Request | None], results: list[RowResult]
    ) -> list[RowResult]:
        """The results with what the drafter proposes after them."""
        seen: dict[int, DraftRow] = {}
        begin = logits = 0
        for number, (row, request, result) in enumerate(zip(rows, requests, results, strict=True)):
            if request is not None and self._serves(request):
                seen[number] = DraftRow(request, row, begin, result, logits)
            begin += len(row.token_ids)
            logits += row.num_logits
        sampled = {number: row for number, row in seen.items() if row.result.token_ids}
        for number, proposal in zip(sampled, self._proposals(seen, sampled), strict=True):
            results[number] = self._with(results[number], seen[number].request, proposal)
        return results

    def _with(self, result: RowResult, request: Request, proposal: Proposal) -> RowResult:
        drafts = self._allowed(proposal.token_ids, request)
        if not drafts:
            return result
        self._sampler.drawn(request.id, drafts, proposal.chances[: len(drafts)])
        return msgspec.structs.replace(result, draft_ids=drafts, draft_parents=proposal.parents[: len(drafts)])

    def _proposals(self, seen: Mapping[int, DraftRow], sampled: Mapping[int, DraftRow]) -> Sequence[Proposal]:
        """One for each row that sampled."""

        def ask() -> Sequence[Proposal]:
            self._drafter.extend(self, tuple(seen.values()))
            return self._drafter.propose(self, tuple(sampled.values()))

        return self._guarded(ask, [Proposal()] * len(sampled))

    def _served(self, mates: Mates) -> list[Request]:
        return self._guarded(lambda: mates.served(self._drafter), [])

    def _serves(self, request: Request) -> bool:
        return self._guarded(lambda: self._drafter.serves(request), False)

    def _guarded(self, ask: Callable[[], Asked], nothing: Asked) -> Asked:
        """A drafter that fails is never asked again, and that is said once: what it would have proposed changes no
        text."""
        if not self._failed:
            try:
                return ask()
            except Exception:
                self._failed = True
                _log.exception("the drafter failed and is not asked again; decoding goes on without it")
        return nothing

    def _allowed(self, drafts: Sequence[int], request: Request) -> tuple[int, ...]:
        """Those that the machine can verify and the request wants: so many, up to the first that is no token."""
        size = self.loaded.vocab_size
        sound = next((place for place, token in enumerate(drafts) if not 0 <= token < size), len(drafts))
        return tuple(drafts[: min(sound, self._most, request.params.most_drafts)])

    def seconds(self, rows: int) -> float:
        return self._pace.seconds(rows)

    def run(self, program: str, rows: Sequence[Row], source_rows: Sequence[int] = ()) -> None:
        """One run of a drafter's program (see DraftSession)."""
        self._session.run(program, self._draft_writer.write(rows, source_rows=source_rows))

    def logits(self, name: str) -> Any:
        return self._session.logits(name)

    def view(self, name: str) -> Any:
        return self._session.view(name)


@contextmanager
def _opened(config: EngineConfig) -> Iterator[Target]:
    with ExitStack() as opened:
        checkpoint = open_checkpoint(resolve(config.model), matrices=matrices(config))
        opened.callback(checkpoint.close)
        model = model_config(checkpoint)
        _check_length(config, model)
        yield Target(model, checkpoint, config, opened)


@dataclass(frozen=True, slots=True)
class _Read:
    """A target of which the headers are read, with its drafter: their programs as lowered, and what they need."""

    content_id: str
    drafter: Drafter
    executor: Executor
    model: ModelConfig
    pooling: Pooling | None
    source: WeightSource
    programs: Mapping[str, Program]
    demand: Demand

    @classmethod
    def of(cls, target: Target, drafter: Drafter) -> _Read:
        config = target.config
        executor: Executor = executor_for(config.executor, config.dtype)
        program, pooling = target_program(target.checkpoint, target.model, config, target.max_model_len)
        plain = {TARGET: with_tail(_tapped(program, drafter.taps), drafter.tail), **drafter.programs}
        source = WeightSource(TARGET, plain, target.checkpoint, drafter)
        chosen: dict[str, Any] = {"activations": config.activations, "kv_dtype": config.kv_dtype, "isa": config.isa}
        programs = {name: executor.lower(program, source.kinds(program), **chosen) for name, program in plain.items()}
        state = executor.state_bytes(programs)
        demand = Demand(
            block_bytes=executor.block_bytes(programs, config.block_tokens),
            block_tokens=config.block_tokens,
            weights_bytes=source.stored_bytes,
            memory_free=machine.memory()[1],
            max_num_seqs=config.max_num_seqs,
            max_model_len=target.max_model_len,
            slot_bytes=state.slot,
            snapshot_bytes=state.snapshot,
        )
        content_id = target.checkpoint.content_id
        return cls(content_id, drafter, executor, target.model, pooling, source, programs, demand)


def _tapped(program: Program, taps: Sequence[str]) -> Program:
    """The program with these values kept until the next launch."""
    unknown = [name for name in taps if name not in program.buffers]
    if unknown:
        raise ConfigError(f"{program.name}: the drafter taps {unknown[0]}, which the model does not compute")
    buffers = {**program.buffers, **{name: replace(program.buffers[name], kind="export") for name in taps}}
    fresh = tuple(name for name in taps if name not in program.exports)
    return replace(program, buffers=buffers, exports=(*program.exports, *fresh))


def _limits(config: EngineConfig, demand: Demand) -> Limits:
    """Raises ResourceError where the cache finds no room."""
    blocks = usable_blocks(demand, kv_memory=config.kv_memory, num_blocks=config.num_blocks)
    return Limits(
        max_tokens=config.max_num_batched_tokens,
        max_rows=config.max_logit_rows,
        max_seqs=config.max_num_seqs,
        max_model_len=demand.max_model_len,
        num_blocks=blocks + 1,
        block_tokens=config.block_tokens,
        num_snapshots=num_snapshots(demand, kv_memory=None if config.num_blocks is not None else config.kv_memory),
    )


def _check_length(config: EngineConfig, model: ModelConfig) -> None:
    if config.max_model_len is not None and config.max_model_len > model.max_position:
        raise UsageError(
            f"max_model_len {config.max_model_len} is more than the {model.max_position} positions of the model",
            param="max_model_len",
        )


def _groups(programs: Mapping[str, Program]) -> tuple[KVGroup, ...]:
    """Groups of all programs by name, numbered as sessions number them: in order of first appearance."""
    found: dict[str, KVGroup] = {}
    for program in programs.values():
        for group in program.groups:
            found.setdefault(group.name, group)
    return tuple(found.values())
