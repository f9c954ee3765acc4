"""One run of `octavo train head`: texts and hidden states, then the head, then what it is worth, then its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from octavo.errors import MissingFileError, UsageError
from octavo.load.plot import COLOURS, Chart, linear, sheet
from octavo.quantize.blockwise import GROUP, stated
from octavo.quantize.packing import packed
from octavo.quantize.rounding import symmetric
from octavo.train import Progress, tensors
from octavo.train.eagle3 import Eagle3
from octavo.train.evaluation import acceptance
from octavo.train.features import ABOUT, Features, prepared
from octavo.train.head import Batch, Head
from octavo.train.loop import PROGRESS, Course
from octavo.train.medusa import Medusa
from octavo.train.mtp import MTPHead
from octavo.train.order import Acceptance, HeadOrder, HeadReport, Verified
from octavo.train.recurrent import Recurrent
from octavo.train.target import Target
from octavo.train.verified import verified
from octavo.train.vocabulary import DraftVocabulary
from octavo.weights.fetch import resolve

HEADS: Mapping[str, Callable[[Target, DraftVocabulary, int, int], Head]] = {
    "medusa": Medusa,
    "recurrent": Recurrent,
    "eagle3": Eagle3,
    "mtp": MTPHead,
}
TAPPED = ("eagle3",)
HELD_OUT = 20  # one sequence in so many
SMOOTHED = 50  # points of the loss plot: means of as many stretches


def run(order: HeadOrder, progress: Progress) -> HeadReport:
    """Raises UsageError for a folder that is there already, or is not of this run."""
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    _check_place(order)
    target = Target(resolve(order.model))
    features = prepared(order, target, taps=order.kind in TAPPED, advance=progress)
    order.out.mkdir(exist_ok=True)
    learnt, held_out = _split(len(features))
    vocabulary = DraftVocabulary.frequent((features.runs[n] for n in learnt), target.vocab_size, order.draft_vocab)
    head = HEADS[order.kind](target, vocabulary, order.steps_ahead, order.seed)
    depends = order.training_choices() | {"model": target.content_id, "sequences": len(features)}
    course = Course(order, head, learnt, depends)
    if order.resume:
        course.restore()
    course.run(features, target, progress)
    found, served = Acceptance(), tuple[Verified, ...]()
    if course.done:
        batches = list(_batches(features, held_out, order, head.depth))
        progress("acceptance", 0, 1)
        found = acceptance(head, target, vocabulary, batches)
        _write(order, head, found)
        if order.verify:
            served = verified(order, [features.runs[number] for number in held_out[: order.verify]], progress)
    report = HeadReport(
        done=course.done,
        step=course.step,
        steps=course.steps,
        sequences=len(features),
        tokens=features.tokens,
        parameters=sum(one.numel() for one in head.parameters()),
        covered=vocabulary.covered,
        seconds=course.seconds,
        acceptance=found,
        verified=served,
        history=tuple(course.history),
    )
    choices = {"model": order.model, "data": order.data, "bits": order.bits}
    choices |= order.text_choices() | order.training_choices()
    (order.out / "training.json").write_text(json.dumps(choices | report.figures(), indent=1))
    (order.out / "loss.svg").write_text(_plot(order, report))
    return report


def _check_place(order: HeadOrder) -> None:
    ours = order.out / PROGRESS, order.feature_folder / ABOUT
    if order.resume:
        if not any(path.exists() for path in ours):
            raise UsageError(f"{order.out}: holds no training to go on with", param="resume")
    elif os.path.lexists(order.out) and (not order.out.is_dir() or any(order.out.iterdir())):
        said = "is there already; name another place, remove it, or go on with --resume"
        raise UsageError(f"{order.out}: {said}", code="out_exists", param="out")
    if not order.out.parent.is_dir():
        raise MissingFileError(f"{order.out.parent}: no such folder")


def _split(count: int) -> tuple[list[int], list[int]]:
    """Sequences to learn from, and those held out: every twentieth, at least one."""
    held_out = [n for n in range(count) if n % HELD_OUT == min(HELD_OUT, count) - 1]
    return [n for n in range(count) if n not in set(held_out)], held_out


def _batches(features: Features, numbers: Sequence[int], order: HeadOrder, depth: int) -> Iterator[Batch]:
    for begin in range(0, len(numbers), order.batch):
        yield Batch.of([features[number] for number in numbers[begin : begin + order.batch]], depth)


def _write(order: HeadOrder, head: Head, found: Acceptance) -> None:
    """The head in its public layout, floats as bfloat16, or matrices in fewer bits as compressed-tensors has them."""
    config, held = head.config(found), dict[str, torch.Tensor]()
    for name, tensor in head.tensors().items():
        own = tensor.detach()
        if order.bits < 16 and name.endswith(".weight") and own.ndim == 2 and own.shape[1] % GROUP == 0:
            stem = name.removesuffix(".weight")
            held |= {stem + end: part for end, part in packed(symmetric(own, order.bits, GROUP), order.bits).items()}
            config["quantization_config"] = stated(order.bits)
        else:
            held[name] = own.bfloat16() if own.is_floating_point() else own
    tensors.write(order.out / "model.safetensors", held | head.vocabulary.tensors())
    (order.out / "config.json").write_text(json.dumps(config, indent=2))


def _plot(order: HeadOrder, report: HeadReport) -> str:
    """The loss by steps, a mean of each stretch."""
    size = max(len(report.history) // SMOOTHED, 1)
    stretches = [report.history[at : at + size] for at in range(0, len(report.history), size)]
    points = [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in stretches]
    chart = Chart(
        f"{order.kind}, {order.loss}",
        linear("step", [float(report.steps)]),
        linear("loss", [loss for _, loss in points] or [1.0]),
    )
    chart.line([(float(step), loss) for step, loss in points], COLOURS[0])
    return sheet(
        [chart], f"{order.model}: {order.kind} head", f"{report.tokens:,} tokens, {report.parameters:,} weights"
    )
