"""The roofline plot of a measurement: one self-contained SVG, log-log, for light and dark pages.

Up: rate, in GFLOP/s. Across: FLOPs for one byte moved. Slanted roofs are reading, level ones products. Operators that
multiply no matrices stand in a strip at the left, by GB/s. One dot a kind of operator and phase, numbered as in the
legend.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from octavo.cli.screen import human
from octavo.runner.measure import Measurement, Phase
from octavo.runner.roofline import Reading, by_kind

TOP, BOTTOM, STRIP, PLOT, LEGEND, WIDTH = 64, 56, (64, 144), (176, 716), 744, 1120
ROW, LEAST_HEIGHT = 34, 560  # pixels: of a legend entry, of the whole
LABEL_DECADES = 1.6  # kept free for the labels of the slanted roofs
COLOURS = (
    "#3b82d6", "#e0762c", "#2f9e6e", "#c94f7c", "#8a63d2", "#b8860b",
    "#1fa3b5", "#d1495b", "#6b8e23", "#8c8c8c", "#a0622d", "#5a7d9a",
)  # fmt: skip
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.small { font-size: 11px; fill: #57606a }
.page { fill: #ffffff }
.grid { stroke: #d8dee4; stroke-width: 1 }
.frame { stroke: #8c959f; stroke-width: 1; fill: none }
.roof { stroke: #57606a; stroke-width: 1.5; fill: none }
.pages { stroke-dasharray: 6 4 }
.near { stroke-dasharray: 2 3 }
.dot { stroke: #ffffff; stroke-width: 1 }
.lead { stroke: #8c959f; stroke-width: 0.7 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.small { fill: #9198a1 }
.page { fill: #0d1117 }
.grid { stroke: #21262d }
.frame { stroke: #6e7681 }
.roof { stroke: #b1bac4 }
.dot { stroke: #0d1117 }
}
"""


@dataclass(frozen=True, slots=True)
class _Dot:
    """One kind in one phase. work: FLOPs a byte, 0 without matrices. rate: G FLOP/s, or GB/s without."""

    number: int
    reading: Reading
    phase: Phase

    @property
    def work(self) -> float:
        return self.reading.cost.flops / max(self.reading.cost.bytes, 1)

    @property
    def rate(self) -> float:
        rate = self.reading.flops_per_second if self.work else self.reading.bytes_per_second
        return max(rate, 1e5) / 1e9


@dataclass(frozen=True, slots=True)
class _Axes:
    """Decades shown, and where a value stands."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: int

    def across(self, value: float) -> float:
        share = (math.log10(value) - self.x[0]) / (self.x[1] - self.x[0])
        return PLOT[0] + share * (PLOT[1] - PLOT[0])

    def up(self, value: float) -> float:
        share = (math.log10(value) - self.y[0]) / (self.y[1] - self.y[0])
        return self.height - BOTTOM - share * (self.height - BOTTOM - TOP)

    @property
    def slant(self) -> float:
        """Degrees of a roof of reading."""
        wide, high = self.across(10) - self.across(1), self.up(1) - self.up(10)
        return math.degrees(math.atan2(high, wide))


@dataclass(slots=True)
class _Labels:
    """Places that numbers beside dots have taken."""

    taken: list[tuple[float, float]] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Near (x, y), as far as may be from what is there."""
        spots = [
            (x + r * math.cos(a / 4 * math.pi), y + r * math.sin(a / 4 * math.pi))
            for r in (15, 24, 34)
            for a in range(8)
        ]
        best = max(spots, key=lambda spot: min(14.0, min((math.dist(spot, other) for other in self.taken), default=99)))
        self.taken.append(best)
        return best


def render(found: Measurement, title: str) -> str:
    """The whole file. title: what was measured."""
    phases = (found.decode, found.prefill)
    names = list(dict.fromkeys(row.name for phase in phases for row in by_kind(phase.operators)))
    dots = [
        _Dot(names.index(row.name) + 1, row, phase)
        for phase in phases
        for row in by_kind(phase.operators)
        if row.seconds > 0
    ]
    height = max(LEAST_HEIGHT, TOP + 66 + ROW * len(names) + 20)
    axes = _axes(found, dots, height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        _text(STRIP[0], 30, title, "title"),
        *_grid(axes),
        *_roofs(found, axes),
        *_marks(dots, axes),
        *_legend(names, dots),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(found: Measurement, dots: Sequence[_Dot], height: int) -> _Axes:
    rates = [dot.rate for dot in dots]
    work = [dot.work for dot in dots if dot.work] or [1.0]
    top = max(*found.prefill.roofs.products.values(), *found.decode.roofs.products.values()) / 1e9
    far = found.decode.roofs.weights / 1e9
    return _Axes(
        (math.log10(min(work)) - LABEL_DECADES, math.log10(max(*work, 10 * top / far)) + 0.3),
        (math.log10(min(rates)) - 0.3, math.log10(max(*rates, top)) + 0.3),
        height,
    )


def _grid(axes: _Axes) -> Iterator[str]:
    foot = axes.height - BOTTOM
    for power in range(math.ceil(axes.y[0]), math.floor(axes.y[1]) + 1):
        y = axes.up(10.0**power)
        for left, right in (STRIP, PLOT):
            yield _line(left, y, right, y, "grid")
        yield _text(STRIP[0] - 8, y + 4, f"{10.0**power:g}", "small", "end")
    for power in range(math.ceil(axes.x[0]), math.floor(axes.x[1]) + 1):
        x = axes.across(10.0**power)
        yield _line(x, TOP, x, foot, "grid")
        yield _text(x, foot + 18, f"{10.0**power:g}", "small", "middle")
    for left, right in (STRIP, PLOT):
        yield f'<rect class="frame" x="{left}" y="{TOP}" width="{right - left}" height="{foot - TOP}"/>'
    yield _text(sum(STRIP) / 2, foot + 18, "no matrices", "small", "middle")
    yield _text(sum(STRIP) / 2, foot + 34, "GB/s", "small", "middle")
    yield _text(sum(PLOT) / 2, foot + 38, "FLOPs for one byte moved", "small", "middle")
    yield _text(STRIP[0] - 8, TOP - 10, "GFLOP/s", "small", "end")


def _roofs(found: Measurement, axes: _Axes) -> Iterator[str]:
    roofs, products = found.decode.roofs, found.prefill.roofs.products
    near = roofs.values(0) / 1e9
    top = max(products.values()) / 1e9
    reading = (
        ("near", near, f"values in the nearest caches, {near:.0f} GB/s", -6),
        ("far", roofs.weights / 1e9, f"weights over {human(roofs.footprint)}, {roofs.weights / 1e9:.0f} GB/s", -6),
        ("pages", roofs.cache / 1e9, f"cached pages, {roofs.cache / 1e9:.0f} GB/s", 14),
    )
    left = 10.0 ** axes.x[0]
    foot = 10.0 ** axes.y[0]
    for style, rate, label, shift in reading:
        begin = max(left, foot / rate)
        x, y = axes.across(begin), axes.up(begin * rate)
        yield _line(x, y, axes.across(top / rate), axes.up(top), f"roof {style}")
        yield _line(STRIP[0], axes.up(rate), STRIP[1], axes.up(rate), f"roof {style}")
        turn = f'transform="translate({x:.1f} {y:.1f}) rotate({-axes.slant:.1f})"'
        yield f'<text class="small" {turn} x="8" y="{shift}">{escape(label)}</text>'
    shown: set[int] = set()
    for kind, rate in sorted(products.items(), key=lambda item: -item[1]):
        y = axes.up(rate / 1e9)
        if round(y) in shown:
            continue
        shown.add(round(y))
        yield _line(axes.across(rate / 1e9 / near), y, PLOT[1], y, "roof")
        yield _text(axes.across(rate / 1e9 / near) + 24, y - 5, f"{kind} products, {rate / 1e9:,.0f} GFLOP/s", "small")


def _marks(dots: Sequence[_Dot], axes: _Axes) -> Iterator[str]:
    places, labels = [], _Labels()
    for dot in dots:
        prompt = dot.phase.name == "prefill"
        side = STRIP[0] + (STRIP[1] - STRIP[0]) * (0.7 if prompt else 0.3)
        places.append((axes.across(dot.work) if dot.work else side, axes.up(dot.rate)))
    labels.taken.extend(places)
    for dot, (x, y) in zip(dots, places, strict=True):
        reading = dot.reading
        figures = f"{1e3 * reading.seconds:.3f} ms, {reading.share_of_limit:.0%} of the limit"
        at_x, at_y = labels.place(x, y)
        yield _mark(dot.number, dot.phase.name, x, y, f"{reading.name}, {dot.phase.name}: {figures}")
        yield _line(x + 0.45 * (at_x - x), y + 0.45 * (at_y - y), x + 0.66 * (at_x - x), y + 0.66 * (at_y - y), "lead")
        yield _text(at_x, at_y + 4, str(dot.number), "small", "middle")


def _legend(names: Sequence[str], dots: Sequence[_Dot]) -> Iterator[str]:
    y = TOP + 8
    for phase, note in (("decode", "decode: share of its time, of its limit"), ("prefill", "prefill: the same")):
        yield _mark(0, phase, LEGEND + 8, y - 4, phase)
        yield _text(LEGEND + 24, y, note)
        y += 20
    for number, name in enumerate(names, 1):
        y += ROW
        yield _mark(number, "decode", LEGEND + 8, y - 18, name)
        yield _text(LEGEND + 24, y - 14, f"{number}  {name}")
        for dot in dots:
            if dot.number == number:
                at = LEGEND + 24 + (150 if dot.phase.name == "prefill" else 0)
                share = 100 * dot.reading.seconds / dot.phase.step_seconds
                said = f"{dot.phase.name} {share:.1f} %, {100 * dot.reading.share_of_limit:.0f} %"
                yield _text(at, y, said, "small")


def _mark(number: int, phase: str, x: float, y: float, said: str) -> str:
    """A disc for decoding, a diamond for a prompt. number 0: of no kind."""
    fill = COLOURS[(number - 1) % len(COLOURS)] if number else "#8c8c8c"
    inside = f"<title>{escape(said)}</title>"
    if phase == "decode":
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{fill}">{inside}</circle>'
    corners = f"{x:.1f},{y - 7:.1f} {x + 7:.1f},{y:.1f} {x:.1f},{y + 7:.1f} {x - 7:.1f},{y:.1f}"
    return f'<polygon class="dot" points="{corners}" fill="{fill}">{inside}</polygon>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
