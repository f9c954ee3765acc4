"""`octavo calibrate MODEL...`: measures this machine into a file that `octavo plan` and `octavo simulate` read.

Roofs (reading by footprint, products, a barrier), then the operators of each model over some shapes of steps beside
what the roofs ask, and what a step of the whole engine takes besides. About a minute a model; alone on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from octavo.backends.native.executor import choose_isa
from octavo.cli.bench import Stopwatch
from octavo.cli.explain import load_program
from octavo.cli.machines import machine_file, of_calibration
from octavo.cli.screen import progress, table
from octavo.config import EngineConfig
from octavo.engine.executor import ThreadEngine
from octavo.engine.llm import LLM
from octavo.errors import UsageError
from octavo.request import SamplingParams
from octavo.runner import machine
from octavo.runner.calibration import calibrated
from octavo.runner.measure import Survey, survey
from octavo.sim.learning import Sample, beside, corrections
from octavo.sim.machine import MachineModel, to_toml
from octavo.sim.parallel import Parallel
from octavo.sim.planning import memory_of
from octavo.sim.steps import StepModel
from octavo.types import StepShape

BLOCK = 16
DECODES = ((1, 128), (2, 512), (4, 128), (8, 1024), (16, 256), (32, 128), (1, 4000), (32, 1024))
PROMPTS = (32, 96, 256, 700, 1536)
ENGINE_BATCHES, ENGINE_CONTEXT, ENGINE_STEPS, REPEATS = (1, 8, 32), 128, 48, 3


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", nargs="+", help="models whose operators are measured")
    parser.add_argument("--output", metavar="FILE", help="write here (default: where `plan --machine this` looks)")
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a core")


def run(args: argparse.Namespace) -> int:
    path = Path(args.output) if args.output else machine_file()
    isa, _ = choose_isa(os.environ.get("OCTAVO_ISA") or None)
    threads = args.threads or machine.topology().threads
    calibration, notes = calibrated(isa, threads, renew=True)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    found = replace(of_calibration(calibration), process=0)
    found = replace(found, process=_process(args.model[0], found))
    surveys = []
    for model in args.model:
        config = EngineConfig(model=model, executor="native", threads=threads)
        with progress(f"measuring {model}") as advance:
            surveys.append(survey(config, DECODES, PROMPTS, advance))
    found = replace(found, corrections=corrections(found, _samples(surveys)), measured=True)
    found = _with_engine(found, surveys, args.model, threads)
    _write(path, found)
    rows = [
        (name, *(f"{min(f):.2f} to {max(f):.2f}" for f in [[y for _, y, _ in each.points]]), f"{each.error:.1%}")
        for name, each in found.corrections.items()
    ]
    table(found.name, ("operators", "time over the limit's", "spread"), rows)
    table("", ("besides, in a step", ""), [("each step", _us(found.step)), ("each row", _us(found.row))])
    print(f"written to {path}")
    return 0


def _samples(surveys: Sequence[Survey]) -> list[Sample]:
    return [Sample(each.program, step.shape, step.operators) for each in surveys for step in each.steps]


def _with_engine(found: MachineModel, surveys: Sequence[Survey], models: Sequence[str], threads: int) -> MachineModel:
    """With what steps of the whole engine take over what their operators do."""
    batches: list[int] = []
    besides: list[float] = []
    bare = replace(found, step=0.0, row=0.0)
    for model, each in zip(models, surveys, strict=True):
        most = max(ENGINE_BATCHES)
        config = EngineConfig(model=model, executor="native", threads=threads, max_num_seqs=most, speculate="off")
        steps = StepModel(each.program, bare)
        with closing(ThreadEngine(config)) as engine:
            clock = Stopwatch(engine)
            prompts = clock.contexts(max(ENGINE_BATCHES), ENGINE_CONTEXT)
            for batch in ENGINE_BATCHES:
                rates = [clock.decode(prompts[:batch], ENGINE_STEPS) for _ in range(REPEATS)]
                taken = batch / statistics.median(rates)
                batches.append(batch)
                shape = StepShape.decode(batch, ENGINE_CONTEXT + ENGINE_STEPS // 2)
                besides.append(taken - steps.seconds(shape))
    step, row = beside(batches, besides)
    return replace(found, step=step, row=row)


def _process(model: str, found: MachineModel) -> int:
    """Bytes of a process that has answered once, less all that a plan counts of its model."""
    with LLM(model, num_blocks=1, max_model_len=BLOCK, enable_prefix_caching=False) as llm:
        llm.generate([{"prompt_token_ids": [0]}], SamplingParams(max_tokens=1), use_tqdm=False)
        counted = memory_of(load_program(model), found, Parallel(), 1, 1)
        return _resident() - counted.fixed - int(counted.of_request(BLOCK, BLOCK))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _write(path: Path, found: MachineModel) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_toml(found), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", param="output") from None


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"
