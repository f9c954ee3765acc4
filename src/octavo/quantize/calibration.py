"""Calibration: text through the program in float32, one step of many windows, operator by operator.

Weights are read when their operator comes and dropped behind it, so that the memory needed is that of one layer, its
values and the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pydoc_data.topics import topics

import numpy as np
import torch

from octavo.backends.reference.executor import interpret, pages
from octavo.backends.reference.step import PageShape, Step
from octavo.errors import RequestError
from octavo.program.ir import Op
from octavo.quantize.scheme import WINDOW
from octavo.quantize.subject import Subject
from octavo.request import Row, TableUpdate
from octavo.runner.batch import HeaderWriter
from octavo.weights.stated import tokenizer_of

BLOCK = 16
Watch = Callable[[Op, Sequence[torch.Tensor]], None]


def windows(subject: Subject, text: str | None, tokens: int) -> list[tuple[int, ...]]:
    """At most `tokens` ids of the text in windows spread over it. None: Python's language reference."""
    tokenizer = tokenizer_of(subject.checkpoint)
    if text is None:
        text = "\n\n".join(topics[name] for name in sorted(topics))
    opening = tokenizer.encode("", add_special=True)[:1]
    width = min(WINDOW, subject.model.max_position, max(tokens, 2))
    ids = tokenizer.encode(text)
    size = width - len(opening)
    count = min(max(tokens // width, 1), len(ids) // size)
    if count < 1:
        raise RequestError(f"the calibration text has {len(ids)} tokens; a window takes {size}", param="calibration")
    begins = [(len(ids) - size) * number // max(count - 1, 1) for number in range(count)]
    return [(*opening, *ids[begin : begin + size]) for begin in begins]


@torch.no_grad()
def walk(
    subject: Subject, texts: Sequence[tuple[int, ...]], weight: Callable[[str], torch.Tensor], watch: Watch
) -> None:
    """Runs the program over all texts at once. weight: its values by name; watch: see `interpret`."""
    program, blocks = subject.program, -(-max(map(len, texts)) // BLOCK)
    shape = PageShape(len(texts) * blocks + 1, BLOCK, len(texts), blocks)
    rows = [Row(f"{number}", number, 0, ids, len(ids), sample=False) for number, ids in enumerate(texts)]
    tables = [
        TableUpdate(slot, group, 0, tuple(range(1 + slot * blocks, 1 + (slot + 1) * blocks)))
        for slot in range(len(texts))
        for group, kept in enumerate(program.groups)
        if kept.rule != "state"
    ]
    writer = HeaderWriter(sum(map(len, texts)), 1, len(texts))
    step = Step.parse(np.array(writer.write(rows, tables=tables).words()))
    writer.close()
    caches = pages({program.name: program}, shape)
    caches.update(step.fields["tables"].tolist())
    if any(group.rule == "state" for group in program.groups):
        caches.states.begin(step.fields, step.rows)
    interpret(program, dict(step.fields), step, caches, weight, watch)
