"""What commands print on the terminal: tables, progress, sizes; and the texts that they read. Results go to stdout,
everything else to stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from octavo.errors import BadFileError, MissingFileError
from octavo.runner.capacity import Capacity
from octavo.runner.capacity import size as human

__all__ = ["capacity_table", "console", "human", "load_notes", "progress", "read_text", "short", "table"]

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.engine.port import ModelInfo

_NUMBER = re.compile(r"[\d.,]+( |$)")


class Advance(Protocol):
    def __call__(self, done: int, total: int, label: str | None = None) -> None:
        """total 0: unknown. label: what goes on now, where that changes."""


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # names out of files are no markup
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, stderr: bool = False) -> None:
    """A table; columns of numbers, with a unit or without, are aligned at the right."""
    from rich import box
    from rich.table import Table

    grid = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        cells = [row[number] for row in rows if row[number]]
        numeric = number > 0 and all(_NUMBER.match(cell) for cell in cells)
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    out = console(stderr=stderr)
    if not out.is_terminal:
        out.width = 200
    out.print(grid)


@contextmanager
def progress(label: str) -> Iterator[Advance]:
    """A bar on stderr, only when that is a terminal; the caller reports (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total, label=None: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def advance(done: int, total: int, label: str | None = None) -> None:
            bar.update(task, completed=done, total=total or None, description=label)

        yield advance


def short(count: float) -> str:
    """A count as `1.23 G`."""
    for unit in ("", " k", " M", " G", " T"):
        if count < 1000:
            return f"{count:.0f}{unit}" if unit == "" else f"{count:.2f}{unit}"
        count /= 1000
    return f"{count:.2f} P"


def capacity_table(info: ModelInfo) -> None:
    """What the engine holds and how much fits, on stderr."""
    rows = Capacity.of(
        weights_bytes=info.weights_bytes,
        kv_bytes_per_token=info.kv_bytes_per_token,
        num_blocks=info.num_blocks,
        block_tokens=info.block_tokens,
        max_model_len=info.max_model_len,
    ).rows()
    rows += [("numerics", info.numerics), ("threads", str(info.threads)), ("loaded in", f"{info.load_seconds:.2f} s")]
    table(info.name, ("capacity", ""), rows, stderr=True)
    load_notes(info)


def load_notes(info: ModelInfo) -> None:
    """What was ignored or rounded at load, on stderr."""
    for note in info.notes:
        print(f"note: {note}", file=sys.stderr)


def read_text(path: str) -> str:
    """A text that a command is given."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path}: not UTF-8 (offset {error.start})", code="bad_text") from None
    except OSError as error:
        raise MissingFileError(f"{path}: {error.strerror}") from None
