"""A run, and two runs beside each other, as tables for people."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from octavo.load.run import Run
from octavo.load.summary import PERCENTILES, TIMES, Distribution, Summary

Row = tuple[str, ...]
LATE = 0.01  # seconds, of the 99th percentile, from which on this process was too slow to be ignored
COMPARED = (50.0, 90.0, 99.0)
ENOUGH = 20  # values of each, below which two percentiles are not compared


def milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def load_of(run: Run) -> str:
    """What the server was put under, in words."""
    asked = run.settings.get
    if asked("trace"):
        scales = f"times / {asked('time_scale'):g}, lengths x {asked('length_scale'):g}"
        return f"the trace {PurePath(str(asked('trace'))).name}, {scales}"
    lengths = f"inputs of {asked('input_tokens')} and outputs of {asked('output_tokens')} tokens"
    if asked("concurrency") is not None:
        return f"{asked('concurrency')} users, {lengths}"
    return f"{asked('rate'):g} requests per second ({asked('arrivals')}), {lengths}"


def times_header() -> Row:
    return ("ms", "mean", *(f"p{percent:g}" for percent in PERCENTILES), "max")


def times_rows(summary: Summary) -> list[Row]:
    rows = []
    for name, what in TIMES.items():
        times = summary.times[name]
        if times:
            points = [times.mean, *(times.percentile(percent) for percent in PERCENTILES), times.values[-1]]
            rows.append((what, *(milliseconds(point) for point in points)))
    return rows


def facts(run: Run) -> list[tuple[str, str]]:
    """(what, how much) of a run, with what a reader has to know about it."""
    summary = run.summary
    rows = [
        ("load", load_of(run)),
        ("requests", f"answered {summary.succeeded:,} of {summary.requests:,}, in {summary.seconds:.1f} s"),
        ("answers", f"{summary.rate(summary.succeeded):.2f} per second"),
        ("output", f"{summary.output_tokens:,} tokens, {summary.rate(summary.output_tokens):,.1f} per second"),
        ("input", f"{summary.input_tokens:,} tokens, {summary.cached_tokens:,} of them from the server's cache"),
    ]
    if run.slo:
        bounds = ", ".join(f"{name} ≤ {milliseconds(bound)} ms" for name, bound in run.slo.items())
        share = summary.good / summary.requests if summary.requests else 0.0
        rows.append(("goodput", f"{summary.rate(summary.good):.2f} per second, {share:.1%} of all ({bounds})"))
    for kind, count in summary.errors.items():
        example = summary.examples.get(kind, "")
        rows.append((f"error: {kind}", f"{count:,}{f', the first: {example[:160]}' if example else ''}"))
    lag = summary.times["lag"]
    if lag and lag.percentile(99) > LATE and run.settings.get("concurrency") is None:
        late = milliseconds(lag.percentile(99))
        rows.append(
            ("note", f"this process was late by {late} ms at the 99th percentile, which is in all times: use less load")
        )
    return rows


def comparison_header() -> Row:
    return ("", "A", "B", "B / A", "")


def comparison(first: Run, second: Run) -> list[Row]:
    """Rates and percentiles of both; percentiles differ where their 95 % intervals do not meet."""
    a, b = first.summary, second.summary
    rows = [
        _figure("requests", a.requests, b.requests, ",.0f"),
        _figure("failed", a.failed, b.failed, ",.0f"),
        _figure("answers per second", a.rate(a.succeeded), b.rate(b.succeeded), ",.2f"),
        _figure("good answers per second", a.rate(a.good), b.rate(b.good), ",.2f"),
        _figure("output tokens per second", a.rate(a.output_tokens), b.rate(b.output_tokens), ",.1f"),
    ]
    for name, what in TIMES.items():
        if name != "lag" and a.times[name] and b.times[name]:
            judged = name != "gap"  # gaps of one request are not independent of each other
            rows += [_percentile(what, percent, a.times[name], b.times[name], judged) for percent in COMPARED]
    return rows


def differences(first: Run, second: Run) -> list[str]:
    """Settings in which the runs differ, the salt aside: what else a difference may come from."""
    names = sorted({*first.settings, *second.settings} - {"salt"})
    pairs: list[tuple[str, Any, Any]] = [
        ("model", first.model, second.model),
        ("SLO", dict(first.slo), dict(second.slo)),
    ]
    pairs += [(name, first.settings.get(name), second.settings.get(name)) for name in names]
    return [f"{name}: {left} and {right}" for name, left, right in pairs if left != right]


def _figure(what: str, a: float, b: float, form: str) -> Row:
    return (what, format(a, form), format(b, form), f"{b / a:.3f}" if a else "", "")


def _percentile(what: str, percent: float, a: Distribution, b: Distribution, judged: bool) -> Row:
    left, right = a.percentile(percent), b.percentile(percent)
    if not judged:
        verdict = ""
    elif min(len(a), len(b)) * (1 - percent / 100) < 1 or min(len(a), len(b)) < ENOUGH:
        verdict = "too few to tell"
    else:
        (a_low, a_high), (b_low, b_high) = a.interval(percent), b.interval(percent)
        verdict = "lower" if b_high < a_low else "higher" if b_low > a_high else "within noise"
    ratio = f"{right / left:.3f}" if left else ""
    return (f"{what}, p{percent:g} ms", milliseconds(left), milliseconds(right), ratio, verdict)
