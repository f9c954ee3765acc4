"""Predicted step times beside measured ones, on this machine: shapes of steps that were not fitted.

    python bench/predict.py MODEL... [--json FILE] [--write]

Operators are measured over the shapes that `octavo calibrate` takes, and corrections are learned from them; then steps
of other batches, contexts and prompts are measured and compared with what the step model says. Measured steps are those
of the native session, hand-off included. --write puts table and plot into docs/planning.md. Alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from octavo.backends.native.executor import choose_isa
from octavo.cli import charts
from octavo.cli.calibrate import DECODES, PROMPTS
from octavo.cli.machines import of_calibration
from octavo.config import EngineConfig
from octavo.runner import machine
from octavo.runner.calibration import calibrated
from octavo.runner.measure import survey
from octavo.sim.learning import Sample, corrections
from octavo.sim.steps import StepModel

GRID = (
    *((1, 256), (1, 1000), (1, 3000), (3, 200), (3, 1500), (6, 500), (6, 3000)),
    *((12, 200), (12, 1500), (24, 200), (24, 700), (32, 400), (32, 2000)),
)
GRID_PROMPTS = (64, 128, 384, 512, 1024)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "planning.md"
BEGIN, END = "<!-- predicted and measured: begin -->", "<!-- predicted and measured: end -->"


@dataclass(frozen=True)
class Point:
    model: str
    what: str
    predicted: float  # ms
    measured: float  # ms

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def points(models: list[str]) -> list[Point]:
    """Corrections come from all the models together."""
    isa, _ = choose_isa(None)
    threads = machine.topology().threads
    calibration, _ = calibrated(isa, threads, renew=True)
    bare = replace(of_calibration(calibration), step=0.0, row=0.0)
    fitted, tested = [], []
    for model in models:
        config = EngineConfig(model=model, executor="native", threads=threads)
        found = survey(config, (*DECODES, *GRID), (*PROMPTS, *GRID_PROMPTS), lambda done, total: None)
        prompts = len(DECODES) + len(GRID)
        fit = {*range(len(DECODES)), *range(prompts, prompts + len(PROMPTS))}
        for number, step in enumerate(found.steps):
            if number in fit:
                fitted.append(Sample(found.program, step.shape, step.operators))
            else:
                tested.append((model, found, step))
    learnt = replace(bare, corrections=corrections(bare, fitted))
    out = []
    for model, found, step in tested:
        shape = step.shape
        decode = shape.tokens == shape.requests and shape.contexts[0] > 0
        what = f"{shape.requests} after {shape.contexts[0]:,}" if decode else f"prompt of {shape.tokens:,}"
        predicted = StepModel(found.program, learnt).seconds(shape)
        out.append(Point(Path(model).stem, what, 1e3 * predicted, 1e3 * step.step_seconds))
    return out


def page(found: list[Point]) -> str:
    errors = [abs(point.error) for point in found]
    rows = ["| model | step | predicted, ms | measured, ms | error |", "|---|---|---|---|---|"]
    rows += [f"| {p.model} | {p.what} | {p.predicted:.2f} | {p.measured:.2f} | {p.error:+.1%} |" for p in found]
    head = f"Median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, over {len(errors)} steps."
    return "\n".join([head, "", "![predicted and measured step times](planning.svg)", "", *rows])


def plot(found: list[Point]) -> str:
    low, high = min(p.measured for p in found) / 1.3, max(p.measured for p in found) * 1.3
    series = {
        name: [(p.measured, p.predicted) for p in found if p.model == name] for name in {p.model: 0 for p in found}
    }
    across, up = charts.Axis("measured, ms", log=True), charts.Axis("predicted, ms", log=True)
    line = [(low * (high / low) ** (n / 60), low * (high / low) ** (n / 60)) for n in range(61)]
    return charts.lines("Predicted and measured", series | {"equal": line}, across, up, dots=series)


def main() -> None:
    parser = argparse.ArgumentParser(description="predicted step times beside measured ones")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = points(args.models)
    text = page(found)
    print(text)
    if args.json:
        args.json.write_text(json.dumps([asdict(point) for point in found], indent=1))
    if args.write:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
        PAGE.with_suffix(".svg").write_text(plot(found) + "\n")


if __name__ == "__main__":
    main()
