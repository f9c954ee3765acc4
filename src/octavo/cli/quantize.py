"""`octavo quantize IN OUT --scheme S`: a model written again with its matrices in fewer bits, and what that costs."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path

from octavo.cli.screen import human, progress, read_text, table
from octavo.errors import UsageError
from octavo.quantize import SCHEMES, Order, Report, quantize
from octavo.quantize.scheme import TOKENS

_LAYER = re.compile(r"\.(\d+)\.")


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    schemes = "; ".join(f"{name}: {scheme.help}" for name, scheme in SCHEMES.items())
    parser.add_argument("model", help="a name, a GGUF file or a safetensors folder")
    parser.add_argument("out", help="the file or folder to write; it must not be there yet")
    parser.add_argument("--scheme", required=True, choices=tuple(SCHEMES), help=schemes)
    parser.add_argument("--group-size", type=int, metavar="N", help="columns of a scale (gptq, awq: 128, 64 or 32)")
    parser.add_argument("--calibration", metavar="FILE", help="a UTF-8 text (default: Python's language reference)")
    parser.add_argument(
        "--calibration-tokens", type=int, default=TOKENS, metavar="N", help=f"of it (default: {TOKENS})"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="cores that compute (default: torch's choice)")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")


def run(args: argparse.Namespace) -> int:
    counts = {
        "--group-size": args.group_size,
        "--threads": args.threads,
        "--calibration-tokens": args.calibration_tokens,
    }
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"quantize: {name} is at least 1")
    if not SCHEMES[args.scheme].calibrated and args.calibration:
        raise UsageError(f"quantize: {args.scheme} is not calibrated; leave --calibration out")
    order = Order(
        model=args.model,
        out=Path(args.out),
        scheme=args.scheme,
        text=read_text(args.calibration) if args.calibration else None,
        tokens=args.calibration_tokens,
        group=args.group_size,
        threads=args.threads,
    )
    with progress("quantizing") as advance:
        report = quantize(order, advance)
    _print(args, report)
    if args.json:
        print(json.dumps({"out": args.out, "scheme": args.scheme, **asdict(report)}))
    return 0


def _print(args: argparse.Namespace, report: Report) -> None:
    """A line a layer: the mean of its matrices."""
    layers: dict[str, list[int]] = {}
    for number, one in enumerate(report.matrices):
        found = _LAYER.search(one.name)
        layers.setdefault(found[1] if found else one.name, []).append(number)
    rows = []
    for name, numbers in layers.items():
        errors, plain = (
            sum(getattr(report.matrices[n], field) for n in numbers) / len(numbers) for field in ("error", "plain")
        )
        rows.append((name, str(len(numbers)), f"{errors:.4f}", f"{plain:.4f}"))
    of = f"its answers to {report.tokens} tokens" if report.tokens else "its numbers"
    table(f"mean error of a layer's matrices, as a share of {of}", ("layer", "matrices", args.scheme, "rounded"), rows)
    groups = f"groups of {report.group}" if report.group else "one scale a row"
    print(f"{args.out}  {human(report.bytes)} (tensors were {human(report.before)}), {groups}")
