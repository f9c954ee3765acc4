"""`octavo top [URL]`: a server as it works, once a second: rates, percentiles, the KV cache, its requests."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from octavo.cli.flags import number
from octavo.cli.ps import row
from octavo.cli.readings import Reading, percentile, rate
from octavo.cli.remote import HELP, Remote
from octavo.cli.screen import console
from octavo.cli.times import seconds
from octavo.errors import UsageError

WINDOW = 30  # readings that percentiles and sparklines reach back
SPARKS, SPARK_WIDTH = "▁▂▃▄▅▆▇█", 20
BAR_WIDTH = 24
ROWS = 20  # requests
COLUMNS = ("request", "model", "state", "prompt", "cached", "output", "first token", "rate", "age")
SPARED = ("model", "cached", "age")  # in this order, where the terminal is narrow


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("url", nargs="?", help=HELP)
    parser.add_argument("--once", action="store_true", help="print one frame and leave")
    parser.add_argument("--interval", type=number, default=1.0, metavar="SECONDS", help="between readings (default: 1)")


def run(args: argparse.Namespace) -> int:
    if not 0.1 <= args.interval <= 3600:
        raise UsageError(f"--interval is 0.1 to 3600 seconds, not {args.interval:g}", param="interval")
    view = View(Remote(args.url))
    view.read()
    screen = console()
    if args.once:
        time.sleep(args.interval)
        view.read()
        screen.width = max(screen.width, 110) if not screen.is_terminal else screen.width
        screen.print(view.frame(screen))
        return 0
    with Live(view.frame(screen), console=screen, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(args.interval)
            view.read()
            live.update(view.frame(screen), refresh=True)


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one interval, in tokens per second."""

    output: float
    prompt: float


class View:
    """The last readings, and how they look."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._readings: deque[Reading] = deque(maxlen=WINDOW)
        self._rates: deque[Rates] = deque(maxlen=SPARK_WIDTH)
        self._requests: list[dict[str, Any]] = []

    def read(self) -> None:
        """Raises what Remote raises."""
        reading = Reading.of(self._remote.text("metrics"), time.monotonic())
        if self._readings:
            names = ("octavo_output_tokens_total", "octavo_prompt_tokens_total")
            self._rates.append(Rates(*(rate(self._readings[-1], reading, name) for name in names)))
        self._readings.append(reading)
        self._requests = self._remote.json("v1/requests")["data"]

    def frame(self, screen: Console) -> RenderableType:
        head = Text.assemble(
            ("Octavo  ", "bold"),
            (", ".join(self._readings[-1].models) or "no model is loaded", "bold red"),
            (f"  {self._remote.url}", "dim"),
        )
        return Group(head, Text(), self._figures(screen), Text(), self._table(screen))

    def _figures(self, screen: Console) -> RenderableType:
        """Rates beside times; above them, where the terminal is narrow."""
        rows = self._rows()
        beside = Padding(figures(rows), (0, 0, 0, 2))
        if fits(beside, screen):
            return beside
        return Padding(
            Group(figures([cells[:3] for cells in rows]), figures([cells[3:] for cells in rows])), (0, 0, 0, 2)
        )

    def _rows(self) -> list[tuple[RenderableType, ...]]:
        now = self._readings[-1]
        last = self._rates[-1] if self._rates else Rates(0.0, 0.0)
        first, gap, step = "octavo_time_to_first_token_seconds", "octavo_inter_token_seconds", "octavo_step_seconds"
        used, cached = now.value("octavo_kv_blocks_used"), now.value("octavo_kv_blocks_cached")
        blocks = max(used + cached + now.value("octavo_kv_blocks_free"), 1.0)
        running, waiting = (now.value(f"octavo_requests_{state}") for state in ("running", "waiting"))
        outputs = (f"{running:.0f} running", f"{waiting:.0f} waiting")
        rows: tuple[tuple[str, str, str, str, str, str], ...] = (
            ("output", f"{last.output:.0f} tokens/s", self._sparks("output"), "first token", *self._percentiles(first)),
            (
                "prompt",
                f"{last.prompt:.0f} tokens/s",
                self._sparks("prompt"),
                "between tokens",
                *self._percentiles(gap),
            ),
            ("KV cache", f"{used / blocks:.1%}", bar(used / blocks, cached / blocks), "step", *self._percentiles(step)),
            ("prefix hits", self._hits(), "", "outputs", *outputs),
        )
        rows += self._drafts()
        return [
            (Text(name, "dim"), value, Text(drawn, "red"), Text(other, "dim"), half, most)
            for name, value, drawn, other, half, most in rows
        ]

    def _sparks(self, name: str) -> str:
        return sparks([getattr(each, name) for each in self._rates])

    def _percentiles(self, name: str) -> tuple[str, str]:
        """Of the window; of all time while that is empty."""
        now, before = self._readings[-1], self._readings[0]
        start = before if percentile(before, now, name, 0.5) is not None else None
        half, most = (percentile(start, now, name, q) for q in (0.5, 0.99))
        return (f"p50 {seconds(half)}", f"p99 {seconds(most)}") if half is not None else ("", "")

    def _hits(self) -> str:
        """Of the window's prompt tokens; of all time while that had none."""
        now = self._readings[-1]
        for before in (self._readings[0], Reading(0.0, {}, {})):
            names = ("octavo_cached_tokens_total", "octavo_prompt_tokens_total")
            cached, prompt = (now.value(name) - before.value(name) for name in names)
            if prompt:
                return f"{min(cached / prompt, 1.0):.0%}"
        return ""

    def _drafts(self) -> tuple[tuple[str, str, str, str, str, str], ...]:
        """Of the window; of all time while that had none; no row where nobody proposes."""
        now = self._readings[-1]
        for before in (self._readings[0], Reading(0.0, {}, {})):
            names = ("octavo_drafts_total", "octavo_drafts_accepted_total", "octavo_draft_steps_total")
            drafts, accepted, steps = (now.value(name) - before.value(name) for name in names)
            if drafts and steps:
                share = f"{accepted / drafts:.0%} accepted"
                return (("drafts", share, "", "with drafts", f"{1 + accepted / steps:.2f}", "tokens a step"),)
        return ()

    def _table(self, screen: Console) -> RenderableType:
        for spared in range(len(SPARED) + 1):
            table = Padding(self._requests_without(SPARED[:spared]), (0, 0, 0, 1))
            if fits(table, screen):
                break
        return table

    def _requests_without(self, spared: Sequence[str]) -> Table:
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
        shown = [place for place, name in enumerate(COLUMNS) if name not in spared]
        for place in shown:
            grid.add_column(COLUMNS[place], justify="right" if place > 2 else "left", no_wrap=True)
        for request in self._requests[:ROWS]:
            cells = list(row(request))
            if request["state"] == "prefill":
                done = request["computed_tokens"] / max(request["prompt_tokens"], 1)
                cells[3] = f"{bar(done, 0.0, 10)} {cells[3]}"
            grid.add_row(*(cells[place] for place in shown), style="" if request["state"] != "ended" else "dim")
        return grid


def fits(drawn: RenderableType, screen: Console) -> bool:
    """Whether nothing of it need be cut."""
    return Measurement.get(screen, screen.options.update_width(screen.width + 1), drawn).maximum <= screen.width


def figures(rows: Sequence[Sequence[RenderableType]]) -> Table:
    """Rows of a name, a value and what is drawn or said beside it, once or twice."""
    grid = Table.grid(padding=(0, 3))
    for place in range(len(rows[0])):
        grid.add_column(justify="right" if place % 3 == 1 else "left", no_wrap=True)
    for cells in rows:
        grid.add_row(*cells)
    return grid


def sparks(values: Sequence[float]) -> str:
    top = max(values, default=0.0)
    return "".join(
        SPARKS[min(int(value / top * len(SPARKS)), len(SPARKS) - 1)] if top else SPARKS[0] for value in values
    )


def bar(full: float, half: float, width: int = BAR_WIDTH) -> str:
    """Shares of the width: what is full, what is half full, the rest empty."""
    whole = round(min(full, 1.0) * width)
    partly = min(round(min(half, 1.0) * width), width - whole)
    return "█" * whole + "▒" * partly + "░" * (width - whole - partly)
