"""Writes a checkpoint again with its matrices in fewer bits. What computes needs torch and is imported when it is asked
for; this file and scheme.py need none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from octavo.errors import ResourceError
from octavo.quantize.scheme import SCHEMES, Order, Report, Scheme

__all__ = ["SCHEMES", "Order", "Report", "Scheme", "quantize"]

Progress = Callable[[int, int], None]  # bytes of matrices done, of all


def quantize(order: Order, progress: Progress) -> Report:
    """Raises ResourceError without torch; else as errors.py lists for files, configurations and places on the disk."""
    if find_spec("torch") is None:
        raise ResourceError("quantizing needs torch: pip install 'octavo[torch]'", code="torch_missing")
    report: Report = import_module("octavo.quantize.job").run(order, progress)
    return report
