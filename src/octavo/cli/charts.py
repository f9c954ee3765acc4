"""Line charts and pages of reports: self-contained HTML, for light and dark screens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from octavo.load import plot

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
"""


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    log: bool = False

    def over(self, values: Sequence[float]) -> plot.Axis:
        return (plot.logarithmic if self.log else plot.linear)(self.label, values)


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    x: Axis,
    y: Axis,
    *,
    dots: Collection[str] = (),
) -> str:
    """One chart, an SVG. dots: the series that are marks and no lines."""
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    chart = plot.Chart(title, x.over([point[0] for point in points]), y.over([point[1] for point in points]))
    for number, (name, each) in enumerate(series.items()):
        colour, words = plot.COLOURS[number % len(plot.COLOURS)], name if len(series) > 1 else ""
        if name in dots:
            chart.dots(each, colour, words, radius=2.6)
        else:
            chart.line(each, colour, words)
    return plot.sheet([chart])


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
