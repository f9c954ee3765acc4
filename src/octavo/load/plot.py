"""Small charts as SVG: axes, grid, lines, dots and steps; for light and dark pages, without anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 560, 320  # pixels, of a chart
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 52, 46
MOST_TICKS = 8
COLOURS = ("#3b82d6", "#e0762c", "#2f9e6e", "#c94f7c", "#8a63d2", "#b8860b", "#1fa3b5", "#8c8c8c")
BAD = "#d1495b"
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 14px; font-weight: 600 }
.small { font-size: 11px; fill: #57606a }
.page { fill: #ffffff }
.grid { stroke: #d8dee4; stroke-width: 1 }
.frame { stroke: #8c959f; stroke-width: 1; fill: none }
.bound { stroke: #57606a; stroke-width: 1.2; stroke-dasharray: 5 4 }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.small { fill: #9198a1 }
.page { fill: #0d1117 }
.grid { stroke: #21262d }
.frame { stroke: #6e7681 }
.bound { stroke: #b1bac4 }
}
"""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """low and high in its own units; ticks: (value, label)."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value stands, 0 at the low end, 1 at the high one; what lies beyond stands at the end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-12))
        return min(max((value - low) / (high - low), 0.0), 1.0)


def linear(label: str, values: Sequence[float]) -> Axis:
    """From 0 to a round number above all values."""
    most = max((*values, 1e-9))
    step = 10.0 ** math.floor(math.log10(most / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if most / (step * factor) <= 5)
    count = math.ceil(most / step - 1e-9)
    return Axis(label, 0.0, step * count, tuple((step * place, f"{step * place:g}") for place in range(count + 1)))


def logarithmic(label: str, values: Sequence[float]) -> Axis:
    """Around all values above 0; each decade has as many ticks as there is room for."""
    positive = [value for value in values if value > 0] or [1.0]
    for digits in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1,)):
        marks = [float(f"{digit}e{decade}") for decade in range(-9, 10) for digit in digits]
        low = max((mark for mark in marks if mark <= min(positive)), default=marks[0])
        high = next((mark for mark in marks if mark > max(positive)), marks[-1])
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) <= MOST_TICKS:
            break
    return Axis(label, low, high, tuple((mark, f"{mark:,.10g}") for mark in inside), log=True)


def percentiles(most: float) -> Axis:
    """Percentiles such that every further nine takes as much room; x is 1 / (1 - share)."""
    known = ((2.0, "50"), (4.0, "75"), (10.0, "90"), (100.0, "99"), (1000.0, "99.9"), (10000.0, "99.99"))
    high = next((mark for mark, _ in known[2:] if mark >= most), known[-1][0])
    return Axis("percentile", 1.0, high, ((1.0, "0"), *(tick for tick in known if tick[0] <= high)), log=True)


@dataclass(slots=True)
class Chart:
    """What is drawn goes into `marks`, in pixels; `legend`: (colour, words)."""

    title: str
    x: Axis
    y: Axis
    marks: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)

    def line(self, points: Sequence[Point], colour: str, words: str = "") -> None:
        if points:
            path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
            self.marks.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
            self._named(colour, words)

    def steps(self, values: Sequence[float], colour: str, words: str = "") -> None:
        """values: of the first second, the second one, ..."""
        edges = [(second + side, value) for second, value in enumerate(values) for side in (0, 1)]
        self.line(edges, colour, words)

    def dots(self, points: Sequence[Point], colour: str, words: str = "", radius: float = 1.8) -> None:
        if points:
            drawn = "".join(f"M{self._x(x):.1f} {self._y(y):.1f}h0" for x, y in points)
            look = f'stroke="{colour}" stroke-width="{2 * radius}" stroke-linecap="round" stroke-opacity="0.6"'
            self.marks.append(f'<path d="{drawn}" {look}/>')
            self._named(colour, words)

    def bound(self, value: float, words: str) -> None:
        """A level that something should stay under."""
        if self.y.low < value < self.y.high:
            y = self._y(value)
            self.marks.append(f'<line class="bound" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
            self.marks.append(f'<text class="small" x="{LEFT + 6}" y="{y - 4:.1f}">{escape(words)}</text>')

    def render(self) -> str:
        """A group, its upper left corner at 0."""
        return "\n".join(("<g>", *self._frame(), *self.marks, *self._words(), "</g>"))

    # ---- inside
    def _x(self, value: float) -> float:
        return LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)

    def _named(self, colour: str, words: str) -> None:
        if words:
            self.legend.append((colour, words))

    def _frame(self) -> Iterator[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for value, label in self.x.ticks:
            x = self._x(value)
            yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>'
            yield f'<text class="small" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>'
        for value, label in self.y.ticks:
            y = self._y(value)
            yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
            yield f'<text class="small" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        yield f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'

    def _words(self) -> Iterator[str]:
        yield f'<text class="title" x="{LEFT}" y="20">{escape(self.title)}</text>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text class="small" x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(self.x.label)}</text>'
        yield f'<text class="small" x="{LEFT}" y="{TOP - 8}" text-anchor="start">{escape(self.y.label)}</text>'
        x = WIDTH - RIGHT
        for colour, words in reversed(self.legend):
            x -= 7 * len(words) + 22
            yield f'<rect x="{x}" y="{TOP - 17}" width="10" height="10" rx="2" fill="{colour}"/>'
            yield f'<text class="small" x="{x + 14}" y="{TOP - 8}">{escape(words)}</text>'


def sheet(charts: Sequence[Chart], title: str = "", subtitle: str = "") -> str:
    """One SVG, two charts a row; without a title, no room for one."""
    columns = max(1, min(len(charts), 2))
    rows, top = math.ceil(len(charts) / columns), 60 if title else 0
    width, height = columns * WIDTH, rows * HEIGHT + top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="28">{escape(title)}</text>',
        f'<text class="small" x="{LEFT}" y="46">{escape(subtitle)}</text>',
    ]
    for place, chart in enumerate(charts):
        x, y = place % columns * WIDTH, place // columns * HEIGHT + top
        parts.append(f'<g transform="translate({x} {y})">{chart.render()}</g>')
    return "\n".join((*parts, "</svg>"))


def curve(values: Sequence[float], scale: Callable[[float], float] = lambda value: value) -> list[Point]:
    """Sorted values over the axis of percentiles, thinned where they lie close."""
    points: list[Point] = []
    for rank, value in enumerate(values):
        x = 1 / (1 - rank / len(values))
        if not points or rank == len(values) - 1 or x / points[-1][0] > 1.01:
            points.append((x, scale(value)))
    return points
