"""`octavo train ngram`: counts of a text, as a drafter reads them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from octavo.cli.screen import human, progress, table
from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import UsageError
from octavo.train.ngram import train
from octavo.train.texts import material

ORDER = 4


def run(args: argparse.Namespace) -> int:
    if args.tokens is not None and args.tokens < 1:
        raise UsageError("train: --tokens is at least 1", param="tokens")
    order = ORDER if args.order is None else args.order
    given = material(args.data)
    tokenizer = load_tokenizer(args.model)
    with progress("texts") as advance:

        def told(label: str, done: int, total: int) -> None:
            advance(done, total, label)

        report = train(tokenizer, given, order, Path(args.out), told, args.tokens)
    rows = [
        (f"{n}-grams", f"{count:,}", f"discount {discount:.3f}")
        for n, (count, discount) in enumerate(zip(report.rows, report.discounts, strict=True), 1)
    ]
    if report.held_out:
        said = f"perplexity {report.perplexity:.1f}"
        rows.append(("held out", f"{report.held_out:,} tokens", f"{said}, the likeliest comes {report.right:.1%}"))
    table(f"{args.out}: {report.tokens:,} tokens, {human(report.bytes)}", ("", "", ""), rows)
    if args.json:
        print(json.dumps({"out": args.out, **asdict(report)}))
    return 0
