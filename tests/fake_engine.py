"""An engine with the real loop, scheduler and ledger over a machine that costs nothing: each request's output is its
own prompt, again and again, until max_tokens.

In this process: `install(monkeypatch, machine)`. As the child of a server: `child_command(machine)`.
"""

import struct
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.engine import child, executor
from octavo.engine.parts import EngineParts
from octavo.engine.port import ModelInfo
from octavo.engine.vocabulary import load_tokenizer
from octavo.grammar.structures import Structures
from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.request import RowResult, StepResult
from octavo.sampling.sampler import MaskTime
from octavo.types import KVGroup


@dataclass
class Machine:
    """Seconds that a step and each of its tokens take. hang_at: the step that never ends; turn_seconds: the watchdog's
    patience. load_seconds: of a load in ten parts. not_finite: prompts that begin with this token give no numbers.
    trace: a file that gets when each step ended, as a double of time.perf_counter.
    """

    step_seconds: float = 0.0
    token_seconds: float = 0.0
    hang_at: int | None = None
    turn_seconds: float = 120.0
    load_seconds: float = 0.0
    not_finite: int | None = None
    trace: str | None = None
    vocab_size: int = 300


class FakeRunner:
    """begun: the tenants of requests, by id, in the order in which they first ran. gate: called before a step ends."""

    def __init__(self, machine):
        self.machine = machine
        self.known, self.plans, self.begun, self.steps = {}, deque(), {}, 0
        self.gate = lambda: None
        self._trace = open(machine.trace, "ab", buffering=0) if machine.trace else None  # noqa: SIM115
        self.masks = MaskTime()

    def add(self, request):
        self.known[request.id] = request

    def forget(self, request_id):
        del self.known[request_id]
        return 0.0

    def launch(self, plan):
        self.plans.append(plan)
        for row in plan.rows:
            self.begun.setdefault(row.request_id, self.known[row.request_id].tenant)

    def finish(self):
        self.gate()
        plan, machine = self.plans.popleft(), self.machine
        self.steps += 1
        if self.steps == machine.hang_at:
            time.sleep(10**6)
        if seconds := machine.step_seconds + machine.token_seconds * plan.num_tokens:
            time.sleep(seconds)
        if self._trace is not None:
            self._trace.write(struct.pack("d", time.perf_counter()))
        return StepResult(plan.number, tuple([self._row(row) for row in plan.rows]))

    def close(self):
        return

    def _row(self, row):
        request = self.known.get(row.request_id)
        if request is None or not row.sample:
            return RowResult()
        prompt = request.prompt_ids
        if prompt[0] == self.machine.not_finite:
            return RowResult((0,), finite=False)
        return prompt[(row.start + len(row.token_ids)) % len(prompt)]


def open_fake(machine, config, progress, structures):
    for part in range(10 * (machine.load_seconds > 0)):
        time.sleep(machine.load_seconds / 10)
        progress((part + 1) << 25, 10 << 25)
    blocks = config.num_blocks or 4096
    ledger = KVLedger([KVGroup("full", "full")], blocks + 1, config.block_tokens)
    limits = SchedulerLimits(
        config.max_num_seqs, config.max_num_batched_tokens, config.max_logit_rows, config.max_model_len or 2048
    )
    info = ModelInfo(
        name=config.served_model_name or config.model,
        vocab_size=machine.vocab_size,
        max_model_len=limits.max_model_len,
        num_blocks=blocks,
        block_tokens=config.block_tokens,
        kv_bytes_per_token=4,
        weights_bytes=1,
        numerics="fake-1/f32/f32/kv-f32/portable",
        isa="portable",
        threads=1,
        load_seconds=machine.load_seconds,
    )
    structures = structures or Structures(lambda: load_tokenizer(config.model))
    return EngineParts(FakeRunner(machine), Scheduler(limits, ledger), info, structures)


def install(monkeypatch, machine=None):
    """Engines that are opened from now on, in threads of this process, are fakes."""

    def opened(config, drafter, progress, structures=None):
        return open_fake(machine or Machine(), config, progress, structures)

    monkeypatch.setattr(executor, "open_engine", opened)


def child_command(machine):
    """For executor.CHILD."""
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent / "src")]
    code = f"import sys; sys.path[:0] = {paths!r}; import fake_engine; sys.exit(fake_engine.main({asdict(machine)!r}))"
    return ("-c", code)


def main(fields):
    machine = Machine(**fields)
    child.open_engine = lambda config, drafter, progress: open_fake(machine, config, progress, None)
    watch = child.watch
    child.watch = lambda loop: watch(loop, machine.turn_seconds)
    return child.main()
