"""The report of `octavo plan --html`: memory, where a step's time goes, roofline, curves over batch and context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.cli import charts
from octavo.cli.charts import Axis
from octavo.sim import advice
from octavo.sim.planning import Plan


def render(found: Plan, name: str, helping: Sequence[advice.Change]) -> str:
    devices = found.parallel.devices
    where = f"{f'{devices} x ' if devices > 1 else ''}{found.machine.name}"
    lead = f"{found.batch} requests of {found.speed.context:,} tokens, prompts of {found.wish.prompt:,}."
    if not found.machine.measured:
        lead += " Times are predictions from data sheets and cost rules, not measured ones."
    curve = found.curve()
    blocks = [
        ("In words", charts.paragraphs([*advice.why(found), *_near(found)])),
        ("What would change it", charts.grid(("change", "gain"), [(c.what, c.gain) for c in helping])),
        ("Memory of one device", _memory(found)),
        ("Where a step's time goes", _parts(found)),
        ("Roofline", _roofline(found)),
        ("Tokens a second, all requests", _rates(curve)),
        ("From token to token", _gaps(curve)),
    ]
    return charts.page(f"{name} on {where}", lead, blocks)


def _near(found: Plan) -> list[str]:
    near = [] if found.met else advice.nearest(found)
    return [f"Nearest that is possible: {'; or '.join(near)}."] if near else []


def _memory(found: Plan) -> str:
    memory = found.memory
    rows = [
        ("all", _gb(memory.total)),
        ("the process", _gb(memory.process)),
        *([("the tokenizer", _gb(memory.tokenizer))] if memory.tokenizer else []),
        *((f"weights, {kind}", _gb(size)) for kind, size in memory.weights.items()),
        ("values of a step", _gb(memory.values)),
        ("left for caches", _gb(max(memory.spare, 0))),
        ("cache of one request here", _gb(memory.of_request(found.speed.context, found.wish.block_tokens))),
        ("requests that fit", f"{found.most_requests:,}"),
    ]
    return charts.grid(("", ""), rows)


def _parts(found: Plan) -> str:
    rows = [
        (
            part.name,
            str(part.count),
            f"{part.seconds * 1e3:.3f} ms",
            f"{part.seconds / found.speed.decode:.0%}",
            part.bound,
        )
        for part in found.speed.parts
    ]
    return charts.grid(("operator", "n", "time", "share", "bound by"), rows)


def _roofline(found: Plan) -> str:
    """Operations a byte against operations a second, under the roof of bf16."""
    machine = found.machine
    peak, rate = machine.products["bf16"], machine.bandwidth
    roof = [(x, min(peak, x * rate) / 1e9) for x in (0.1, 0.3, 1, 3, 10, 30, machine.ridge, 1000, 3000)]
    series = {"roof, bf16 products": sorted(roof)}
    for label, parts in (("decode", found.speed.parts), ("prompt", found.prefill_parts)):
        series[label] = [
            (max(part.cost.flops / max(part.cost.bytes, 1), 0.1), part.cost.flops / part.seconds / 1e9)
            for part in parts
            if part.cost.flops and part.seconds
        ]
    across, up = Axis("operations a byte", log=True), Axis("G operations a second", log=True)
    return charts.lines("Operators under the roof", series, across, up, dots=("decode", "prompt"))


def _rates(curve: Mapping[tuple[int, int], float]) -> str:
    series = {
        f"{context:,}": [(b, b / s) for (b, c), s in curve.items() if c == context]
        for context in dict.fromkeys(context for _, context in curve)
    }
    return charts.lines(
        "After so many tokens", series, Axis("requests at once", log=True), Axis("tokens a second", log=True)
    )


def _gaps(curve: Mapping[tuple[int, int], float]) -> str:
    series = {str(batch): [(c, s * 1e3) for (b, c), s in curve.items() if b == batch] for batch in (1, 8, 32, 128)}
    series = {name: points for name, points in series.items() if len(points) > 1}
    return charts.lines(
        "So many at once", series, Axis("tokens before", log=True), Axis("ms from token to token", log=True)
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:,.2f} GB"
