"""A run as one file: the charts alone (SVG), or with tables around them (HTML). Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from octavo.errors import UsageError
from octavo.load.plot import BAD, COLOURS, Axis, Chart, curve, linear, logarithmic, percentiles, sheet
from octavo.load.run import Run, write_text
from octavo.load.summary import TIMES, Distribution, Summary
from octavo.load.tables import (
    comparison,
    comparison_header,
    differences,
    facts,
    load_of,
    milliseconds,
    times_header,
    times_rows,
)

BLUE, ORANGE, GREEN = COLOURS[:3]
SHOWN = ("ttft", "gap", "e2e")
MOST_DOTS = 4000
PAGE = """
:root { color-scheme: light dark }
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px auto; max-width: 1120px; padding: 0 16px;
background: #ffffff; color: #24292f }
h1 { font-size: 20px; margin: 0 0 4px }
h2 { font-size: 15px; margin: 24px 0 6px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 3px 12px; border-bottom: 1px solid #d8dee4 }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
table.facts td { text-align: left }
svg { max-width: 100%; height: auto }
.small { color: #57606a; font-size: 12px }
@media (prefers-color-scheme: dark) {
body { background: #0d1117; color: #e6edf3 }
th, td { border-color: #30363d }
.small { color: #9198a1 }
}
"""


def write_report(path: str, run: Run, other: Run | None = None) -> None:
    """By the ending of the name, .html or .svg. other: is compared with the run. Raises UsageError, ResourceError."""
    if path.endswith(".svg"):
        write_text(path, svg(run, other))
    elif path.endswith((".html", ".htm")):
        write_text(path, html(run, other))
    else:
        raise UsageError(f"--report {path}: the name must end with .html or .svg", param="report")


def svg(run: Run, other: Run | None = None) -> str:
    if other is not None:
        return sheet(_compared(run, other), "A and B", f"A: {_about(run)}; B: {_about(other)}")
    return sheet(_charts(run), f"{run.model} under load", f"{_about(run)}: {load_of(run)}")


def html(run: Run, other: Run | None = None) -> str:
    title = f"{run.model} under load" if other is None else "Two runs"
    parts = [f"<h1>{escape(title)}</h1>"]
    if other is None:
        parts += [f'<p class="small">{escape(_about(run))}</p>', _table((), facts(run), "facts")]
        parts += ["<h2>Times</h2>", _table(times_header(), times_rows(run.summary))]
    else:
        parts += [f'<p class="small">{name}: {escape(_about(each))}</p>' for name, each in (("A", run), ("B", other))]
        parts.append(_table(comparison_header(), comparison(run, other)))
        parts += [f'<p class="small">differs: {escape(each)}</p>' for each in differences(run, other)]
    parts += ["<h2>Charts</h2>", sheet(_charts(run) if other is None else _compared(run, other))]
    for name, each in (("", run),) if other is None else ((" of A", run), (" of B", other)):
        settings = [(key, str(value)) for key, value in each.settings.items() if value is not None]
        parts += [f"<h2>Settings{name}</h2>", _table((), settings, "facts")]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{PAGE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _about(run: Run) -> str:
    return f"{run.url}, {run.model}, {run.started}, octavo {run.version}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    lines = [f'<table class="{kind}">' if kind else "<table>"]
    if header:
        lines.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>")
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join((*lines, "</table>"))


# ---- charts of one run
def _charts(run: Run) -> list[Chart]:
    return [_first_tokens(run), _latencies(run.summary), _requests(run), _tokens(run.summary)]


def _first_tokens(run: Run) -> Chart:
    begin = min((record.due for record in run.records), default=0.0)
    answered = [(r.due - begin, r.ttft * 1000) for r in run.records if r.error is None and r.ttft is not None]
    failed = [record.due - begin for record in run.records if record.error is not None]
    bound = run.slo.get("ttft")
    values = [y for _, y in answered] + ([bound * 1000] if bound else [])
    x = linear("seconds after the start, when each was due", [run.summary.seconds])
    chart = Chart("Time to first token", x, logarithmic("ms", values))
    chart.dots(answered[:: max(1, len(answered) // MOST_DOTS)], BLUE, "answered")
    chart.dots([(at, chart.y.high) for at in failed], BAD, "failed", 2.4)
    if bound:
        chart.bound(bound * 1000, f"SLO {milliseconds(bound)} ms")
    return chart


def _latencies(summary: Summary) -> Chart:
    shown = [name for name in SHOWN if summary.times[name]]
    values = [end for name in shown for end in _ends(summary.times[name])]
    most = max((len(summary.times[name]) for name in shown), default=1)
    chart = Chart("Latency by percentile", percentiles(most), logarithmic("ms", values))
    for name, colour in zip(SHOWN, COLOURS, strict=False):
        if name in shown:
            chart.line(curve(summary.times[name].values, _ms), colour, _short_name(name))
    return chart


def _requests(run: Run) -> Chart:
    seconds = run.summary.timeline
    values = [count for second in seconds for count in (second.sent, second.ended, second.open)]
    chart = Chart("Requests", _time(run.summary), linear("per second, and open", [*map(float, values)]))
    chart.steps([second.sent for second in seconds], BLUE, "due")
    chart.steps([second.ended for second in seconds], GREEN, "ended")
    chart.line([(place + 1.0, float(second.open)) for place, second in enumerate(seconds)], ORANGE, "open")
    return chart


def _tokens(summary: Summary) -> Chart:
    values = [second.tokens for second in summary.timeline]
    chart = Chart("Output tokens", _time(summary), linear("per second", values))
    chart.steps(values, BLUE)
    return chart


# ---- of two
def _compared(run: Run, other: Run) -> list[Chart]:
    charts = [_overlaid(run.summary, other.summary, name) for name in (*SHOWN, "tpot")]
    return [chart for chart in charts if chart is not None]


def _overlaid(a: Summary, b: Summary, name: str) -> Chart | None:
    if not (a.times[name] and b.times[name]):
        return None
    values = [end for each in (a, b) for end in _ends(each.times[name])]
    title = f"{TIMES[name][0].upper()}{TIMES[name][1:]}"
    chart = Chart(title, percentiles(max(len(a.times[name]), len(b.times[name]))), logarithmic("ms", values))
    for each, colour, words in ((a, BLUE, "A"), (b, ORANGE, "B")):
        chart.line(curve(each.times[name].values, _ms), colour, words)
    return chart


def _ends(times: Distribution) -> tuple[float, float]:
    """Of the axis, in ms. Gaps of nothing, between two events of one packet, would take it all."""
    return times.percentile(5) * 1000, times.values[-1] * 1000


def _time(summary: Summary) -> Axis:
    return linear("seconds after the start", [float(len(summary.timeline))])


def _ms(seconds: float) -> float:
    return seconds * 1000


def _short_name(name: str) -> str:
    return {"ttft": "first token", "gap": "gap", "e2e": "end"}[name]
