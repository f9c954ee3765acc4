"""`octavo explain MODEL --measure` on the terminal and as JSON: where the time of a step goes, beside the limits.

The JSON, one object (what its figures mean: docs/performance.md); seconds, bytes, and either a second:

    model, numerics, isa, threads
    weights      [{name, kind, shape, streamed_bytes, file_bytes}]
    calibration  {processor, sequential and random: by threads, products: by threads, barrier_s, seconds}
    decode       {batch, context, PHASE}      prefill  {prompt_tokens, PHASE}
      PHASE      tokens, steps, step_s, tok_s, operators_s, limit_s, share_of_limit, weights_s, roofs, kinds, operators
      roofs      footprint_bytes, weights_bytes_s, cache_bytes_s, products {kind: operations_s}, barrier_s
      kinds, operators   [{name, kind, matrices, dtypes, count, seconds, share, bytes, weight_bytes, cache_bytes,
                   value_bytes, flops, product, operations, bytes_s, flops_s, bound, limit_s, share_of_limit}]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.cli.screen import human, short, table
from octavo.program.limits import Curve
from octavo.runner.calibration import MIB, Calibration
from octavo.runner.measure import Measurement, Phase, Workload
from octavo.runner.roofline import Reading, by_kind

_COLUMNS = ("operator", "n", "values", "ms", "share", "bytes", "FLOP", "GB/s", "GFLOP/s", "limit", "of limit")
_BOUND = {
    "weights": "reading weights",
    "cache": "reading the KV cache",
    "values": "moving values",
    "barrier": "the barrier",
}


def show(found: Measurement, work: Workload, calibration: Calibration, files: Mapping[str, int], every: bool) -> None:
    """Tables on stdout. files: weight name -> its bytes on disk. every: each operator, not each kind."""
    _show_machine(calibration)
    _show_weights(found, files)
    for phase, what in _phases(found, work):
        rows = phase.operators if every else by_kind(phase.operators)
        table(what, _COLUMNS, [_cells(row, phase) for row in rows])
        table("", (f"total, {phase.name}", ""), _totals(phase))


def document(
    found: Measurement, work: Workload, calibration: Calibration, files: Mapping[str, int], model: str
) -> dict[str, Any]:
    loaded = found.loaded
    weights = [
        {
            "name": weight.name,
            "kind": weight.kind,
            "shape": list(weight.shape),
            "streamed_bytes": weight.stored_bytes,
            "file_bytes": files[weight.name],
        }
        for weight in found.program.weights.values()
    ]
    return {
        "model": model,
        "numerics": loaded.numerics,
        "isa": loaded.isa,
        "threads": loaded.threads,
        "weights": weights,
        "calibration": _calibration(calibration),
        "decode": {"batch": work.batch, "context": work.context, **_phase(found.decode)},
        "prefill": {"prompt_tokens": work.prompt, **_phase(found.prefill)},
    }


def _phases(found: Measurement, work: Workload) -> tuple[tuple[Phase, str], tuple[Phase, str]]:
    return (
        (found.decode, f"decode, batch {work.batch} after {work.context} tokens each"),
        (found.prefill, f"prefill of {work.prompt} tokens"),
    )


def _cells(row: Reading, phase: Phase) -> tuple[str, ...]:
    return (
        row.name,
        str(row.count),
        row.dtypes,
        f"{1e3 * row.seconds:.3f}",
        f"{100 * row.seconds / phase.step_seconds:.1f} %",
        human(row.cost.bytes),
        short(row.cost.flops) if row.cost.flops else "",
        f"{row.bytes_per_second / 1e9:.1f}",
        f"{row.flops_per_second / 1e9:.1f}" if row.cost.flops else "",
        f"{row.product} products" if row.bound == "products" else _BOUND[row.bound],
        f"{100 * row.share_of_limit:.0f} %",
    )


def _totals(phase: Phase) -> list[tuple[str, str]]:
    roofs, inside = phase.roofs, sum(row.seconds for row in phase.operators)
    products = ", ".join(f"{kind} {rate / 1e9:,.0f}" for kind, rate in roofs.products.items())
    return [
        ("time", f"{1e3 * phase.step_seconds:.3f} ms, {phase.tokens / phase.step_seconds:,.0f} tok/s"),
        ("between operators and hand-off", f"{1e6 * (phase.step_seconds - inside):.0f} us"),
        ("least time by the limits", f"{1e3 * phase.limit_seconds:.3f} ms, {_share(phase, phase.limit_seconds)}"),
        ("to read the weights once", f"{1e3 * phase.weight_seconds:.3f} ms, {_share(phase, phase.weight_seconds)}"),
        (
            f"read here, over {human(roofs.footprint)}",
            f"{roofs.weights / 1e9:.1f} GB/s front to back, {roofs.cache / 1e9:.1f} GB/s in pages",
        ),
        ("products here, GFLOP/s", products),
    ]


def _share(phase: Phase, seconds: float) -> str:
    return f"{100 * seconds / phase.step_seconds:.0f} % of the time"


def _show_weights(found: Measurement, files: Mapping[str, int]) -> None:
    """By kind, as they are streamed and as they lie in the file."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for weight in found.program.weights.values():
        count, streamed, stored = sizes.get(str(weight.kind), (0, 0, 0))
        size = (count + 1, streamed + (weight.stored_bytes or 0), stored + files[weight.name])
        sizes[str(weight.kind)] = size
    sizes["all"] = tuple(map(sum, zip(*sizes.values(), strict=True)))  # type: ignore[assignment]
    rows = [
        (kind, str(count), human(streamed), human(stored), f"{streamed / max(stored, 1):.3f}")
        for kind, (count, streamed, stored) in sizes.items()
    ]
    table("", ("weights", "n", "streamed", "in the file", "ratio"), rows)


def _show_machine(calibration: Calibration) -> None:
    key = calibration.key
    counts = sorted(calibration.sequential)
    rows = [
        (f"read {size // MIB or size / MIB} MiB", *(_rate(calibration.sequential[n], size) for n in counts))
        for size, _ in calibration.sequential[key.threads]
    ]
    for unit, curve in calibration.random[key.threads].items():
        rows += [
            (
                f"read {size // MIB} MiB in pages of {unit // 1024} KiB",
                *(_rate(calibration.random[n][unit], size) for n in counts),
            )
            for size, _ in curve
        ]
    rows += [
        (f"{kind} products", *(f"{calibration.products[n][kind] / 1e9:,.0f} GFLOP/s" for n in counts))
        for kind in calibration.products[key.threads]
    ]
    rows.append(("barrier", *("" if n == 1 else f"{1e9 * calibration.barrier:.0f} ns" for n in counts)))
    heads = (f"{key.processor}, {key.isa}", *(f"{n} thread{'s' * (n > 1)}" for n in counts))
    table("", heads, rows)


def _rate(curve: Curve, size: int) -> str:
    return f"{dict(curve)[size] / 1e9:.1f} GB/s"


def _calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "processor": calibration.key.processor,
        "sequential": {str(n): [list(point) for point in curve] for n, curve in calibration.sequential.items()},
        "random": {
            str(n): {str(unit): [list(point) for point in curve] for unit, curve in curves.items()}
            for n, curves in calibration.random.items()
        },
        "products": {str(n): dict(rates) for n, rates in calibration.products.items()},
        "barrier_s": calibration.barrier,
        "seconds": calibration.seconds,
    }


def _phase(phase: Phase) -> dict[str, Any]:
    roofs = phase.roofs
    return {
        "tokens": phase.tokens,
        "steps": phase.steps,
        "step_s": phase.step_seconds,
        "tok_s": phase.tokens / phase.step_seconds,
        "operators_s": sum(row.seconds for row in phase.operators),
        "limit_s": phase.limit_seconds,
        "share_of_limit": phase.limit_seconds / phase.step_seconds,
        "weights_s": phase.weight_seconds,
        "roofs": {
            "footprint_bytes": roofs.footprint,
            "weights_bytes_s": roofs.weights,
            "cache_bytes_s": roofs.cache,
            "products": dict(roofs.products),
            "barrier_s": roofs.barrier,
        },
        "kinds": [_reading(row, phase) for row in by_kind(phase.operators)],
        "operators": [_reading(row, phase) for row in phase.operators],
    }


def _reading(row: Reading, phase: Phase) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "matrices": row.matrices,
        "dtypes": row.dtypes,
        "count": row.count,
        "seconds": row.seconds,
        "share": row.seconds / phase.step_seconds,
        "bytes": row.cost.bytes,
        "weight_bytes": row.cost.weight_bytes,
        "cache_bytes": row.cost.cache_bytes,
        "value_bytes": row.cost.value_bytes,
        "flops": row.cost.flops,
        "product": row.product,
        "operations": row.operations,
        "bytes_s": row.bytes_per_second,
        "flops_s": row.flops_per_second,
        "bound": row.bound,
        "limit_s": row.limit_seconds,
        "share_of_limit": row.share_of_limit,
    }
