"""The report of `octavo simulate --html`: percentiles, and how queue, first tokens and gaps went over time."""

from __future__ import annotations

from typing import TypeVar

from octavo.cli import charts
from octavo.cli.charts import Axis
from octavo.sim.service import History
from octavo.sim.summary import PERCENTILES, Slo, Spread, Summary
from octavo.workload.percentiles import percentile

T = TypeVar("T")

POINTS = 400  # of a chart


def render(history: History, found: Summary, title: str, slo: Slo) -> str:
    lead = (
        f"{found.requests:,} requests in {found.seconds:,.0f} s of virtual time; {found.kept:.1%} within the limits "
        f"({_limit('first token', slo.ttft)}, {_limit('token to token', slo.gap)})."
    )
    served = [journey for journey in history.journeys if journey.first >= 0]
    rows = [
        (name, *_cells(spread))
        for name, spread in (
            ("first token", found.ttft),
            ("token to token", found.gap),
            ("the same, by request", found.mean_gap),
            ("whole answer", found.whole),
        )
    ]
    over = Axis("seconds")
    queue = {
        "running": [(t, float(running)) for t, running, _ in _thin(history.queue)],
        "waiting": [(t, float(waiting)) for t, _, waiting in _thin(history.queue)],
    }
    first = {"first token": [(j.arrival.at, max(j.ttft, 1e-4)) for j in _thin(served)]}
    gaps = {"worst gap of a request": [(j.arrival.at, max(j.worst_gap, 1e-4)) for j in _thin(served) if j.tokens > 1]}
    blocks = [
        ("Seconds", charts.grid(("", "mean", *(f"p{p}" for p in PERCENTILES), "most"), rows)),
        ("The service", charts.grid(("", ""), _service(found))),
        ("Requests", charts.lines("Running and waiting", queue, over, Axis("requests"))),
        ("First tokens", charts.lines("By arrival", first, over, Axis("seconds", log=True), dots=first)),
        ("Gaps", charts.lines("By arrival", gaps, over, Axis("seconds", log=True), dots=gaps)),
        ("Distribution", _distribution(history)),
    ]
    return charts.page(title, lead, blocks)


def _distribution(history: History) -> str:
    """Share of requests whose first token came within so long."""
    ordered = sorted(max(journey.ttft, 1e-4) for journey in history.journeys if journey.first >= 0)
    if not ordered:
        return ""
    points = [(percentile(ordered, p), p / 100) for p in range(0, 101)]
    return charts.lines("Requests by time to first token", {"": points}, Axis("seconds", log=True), Axis("share"))


def _service(found: Summary) -> list[tuple[str, str]]:
    return [
        *((reason, f"{count:,}") for reason, count in found.ended.items()),
        ("tokens out, a second", f"{found.output_tokens / max(found.seconds, 1e-9):,.1f}"),
        ("requests within the limits, a second", f"{found.goodput:.2f}"),
        ("replicas busy", f"{found.busy:.1%}"),
        ("prompt tokens found in the cache", f"{found.cached:.1%}"),
        ("preemptions", f"{found.preemptions:,}"),
    ]


def _thin(values: list[T]) -> list[T]:
    return values[:: max(1, len(values) // POINTS)]


def _cells(spread: Spread) -> tuple[str, ...]:
    return tuple(f"{value:.3f}" for value in (spread.mean, *spread.at, spread.most))


def _limit(what: str, limit: float | None) -> str:
    return f"{what} at any time" if limit is None else f"{what} within {limit:g} s"
