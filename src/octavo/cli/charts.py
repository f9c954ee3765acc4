"""Line charts and pages of reports: self-contained SVG and HTML, for light and dark screens."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 68, 24, 44, 66
COLOURS = ("#3b82d6", "#e0762c", "#2f9e6e", "#c94f7c", "#8a63d2", "#b8860b", "#1fa3b5", "#8c8c8c")
_STYLE = """
:root { --ink: #24292f; --soft: #57606a; --line: #d8dee4; --page: #ffffff; --panel: #f6f8fa }
@media (prefers-color-scheme: dark) {
:root { --ink: #e6edf3; --soft: #9198a1; --line: #30363d; --page: #0d1117; --panel: #161b22 } }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page);
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 60rem }
h1 { font-size: 1.5rem; font-weight: 600; margin: 0 0 .3rem } h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem }
p { margin: .3rem 0; max-width: 46rem } .soft { color: var(--soft) }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums }
td, th { text-align: left; padding: .28rem 1.4rem .28rem 0; border-bottom: 1px solid var(--line); font-weight: 400 }
td.n, th.n { text-align: right } th { color: var(--soft); font-size: .85rem }
svg { width: 100%; height: auto; max-width: 720px }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) } svg .soft { fill: var(--soft); font-size: 11px }
svg .grid { stroke: var(--line) } svg .head { font-size: 13px; font-weight: 600 }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    """low, high: of the values, as their logarithms on a log axis. begin, end: pixels."""

    axis: Axis
    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def of(cls, axis: Axis, values: Sequence[float], begin: float, end: float) -> _Scale:
        if axis.log:
            known = [math.log10(value) for value in values if value > 0] or [0.0]
            low, high = min(known), max(known)
        else:
            low, high = min(0.0, *values), max(0.0, *values)
        if high - low < 1e-12:
            high = low + 1.0
        return cls(axis, low, high, begin, end)

    def at(self, value: float) -> float:
        inner = math.log10(max(value, 1e-12)) if self.axis.log else value
        return self.begin + (inner - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> Iterator[float]:
        if self.axis.log:
            steps = (1, 2, 5) if self.high - self.low < 2.2 else (1,)
            for power in range(math.floor(self.low), math.ceil(self.high) + 1):
                for step in steps:
                    if self.low - 1e-9 <= math.log10(step * 10.0**power) <= self.high + 1e-9:
                        yield step * 10.0**power
            return
        raw = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(raw))
        width = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        for count in range(math.ceil(self.low / width - 1e-9), math.floor(self.high / width + 1e-9) + 1):
            yield count * width


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    x: Axis,
    y: Axis,
    *,
    dots: Collection[str] = (),
) -> str:
    """One chart. dots: the series that are marks and no lines."""
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    across = _Scale.of(x, [point[0] for point in points], LEFT, WIDTH - RIGHT)
    up = _Scale.of(y, [point[1] for point in points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<text class="head" x="{LEFT}" y="18">{escape(title)}</text>',
    ]
    for tick in across.ticks():
        at = across.at(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="soft" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(tick)}</text>'
        )
    for tick in up.ticks():
        at = up.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text class="soft" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    parts.append(
        f'<text class="soft" x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 32}" text-anchor="end">{escape(x.label)}</text>'
    )
    parts.append(f'<text class="soft" x="{LEFT}" y="{TOP - 10}">{escape(y.label)}</text>')
    legend = float(LEFT)
    for number, (name, each) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        spots = [(across.at(a), up.at(b)) for a, b in each]
        if name in dots:
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{colour}" fill-opacity=".75"/>' for a, b in spots
            ]
        else:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(series) > 1:
            parts.append(f'<rect x="{legend}" y="{HEIGHT - 20}" width="10" height="10" rx="2" fill="{colour}"/>')
            parts.append(f'<text class="soft" x="{legend + 14}" y="{HEIGHT - 11}">{escape(name)}</text>')
            legend += 28 + 6.2 * len(name)
    return "\n".join([*parts, "</svg>"])


def standalone(chart: str) -> str:
    """A chart as a file of its own."""
    head, _, rest = chart.partition(">")
    return f'{head}><style>{_STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="var(--page)"/>{rest}\n'


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns that hold numbers stand at the right."""
    numeric = [
        number > 0 and all(row[number][:1].isdigit() or not row[number] for row in rows)
        for number in range(len(columns))
    ]

    def line(cells: Sequence[str], tag: str) -> str:
        marked = zip(cells, numeric, strict=True)
        return "".join(f"<{tag}{' class=n' if right else ''}>{escape(cell)}</{tag}>" for cell, right in marked)

    head = f"<tr>{line(columns, 'th')}</tr>" if any(columns) else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def page(title: str, lead: str, blocks: Sequence[tuple[str, str]]) -> str:
    """One HTML file. blocks: (heading, HTML)."""
    body = "".join(f"<h2>{escape(head)}</h2>{html}" for head, html in blocks if html)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="soft">{escape(lead)}</p>{body}</body></html>\n'
    )


def paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def short(value: float) -> str:
    """A tick: 0.002, 15, 20k."""
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:g}{unit}"
    return f"{value:.6g}"
