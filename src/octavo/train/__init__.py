"""Trains draft heads on a model's own hidden states. What computes needs torch and is imported when it is asked for;
this file and order.py need none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from octavo.errors import ResourceError
from octavo.train.order import KINDS, LOSSES, QUESTIONS, HeadOrder, HeadReport

__all__ = ["KINDS", "LOSSES", "QUESTIONS", "HeadOrder", "HeadReport", "Progress", "train_head"]

Progress = Callable[[str, int, int], None]  # what goes on, units done, of all


def train_head(order: HeadOrder, progress: Progress) -> HeadReport:
    """Raises ResourceError without torch; else as errors.py lists for files, configurations and places on the disk."""
    if find_spec("torch") is None:
        raise ResourceError("training needs torch: pip install 'octavo[torch]'", code="torch_missing")
    report: HeadReport = import_module("octavo.train.job").run(order, progress)
    return report
