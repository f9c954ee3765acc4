"""`octavo train WHAT`: n-gram models (train_ngram.py), and draft heads, learnt from a model's own hidden states."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from octavo.cli import train_ngram
from octavo.cli.screen import progress, short, table
from octavo.cli.train_ngram import ORDER
from octavo.errors import UsageError
from octavo.train import KINDS, LOSSES, QUESTIONS, HeadOrder, HeadReport, train_head

SHARED = ("model", "kind", "data", "out", "tokens")  # of head and ngram
_DEFAULT = HeadOrder(model="", kind="medusa", data="", out=Path())


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    def number(flag: str, meaning: str, kind: type = int, metavar: str = "N") -> None:
        default = getattr(_DEFAULT, flag.replace("-", "_"))
        said = meaning if default is None else f"{meaning} (default: {default})"
        parser.add_argument(f"--{flag}", type=kind, metavar=metavar, default=default, help=said)

    kinds = "; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items())
    what = "head: a draft head for --speculate head:OUT; ngram: an n-gram model for --speculate ngramlm:OUT"
    parser.add_argument("what", choices=("head", "ngram"), help=what)
    parser.add_argument("--kind", choices=tuple(KINDS), help=f"of head. {kinds}")
    parser.add_argument("--order", type=int, metavar="N", help=f"of ngram: its longest n-grams (default: {ORDER})")
    parser.add_argument("--model", required=True, metavar="MODEL", help="the model to draft for, as run takes it")
    data = (
        "a text, a folder of texts, a log of requests (.jsonl), stdlib: the documentation in Python's library, or "
        "questions: ordinary ones to a chat model, half of them answered greedily, with --generate"
    )
    parser.add_argument("--data", required=True, metavar="PATH", help=data)
    parser.add_argument("--out", required=True, metavar="PATH", help="the head's folder, or the n-gram model's file")
    parser.add_argument(
        "--tokens", type=int, metavar="N", help=f"of text in all (default: {_DEFAULT.tokens}; ngram: all)"
    )
    number("window", "longest sequence")
    number("generate", "the model goes on by so many tokens after each prompt of the data; 0: text as it is")
    number("prompt", "tokens of a prompt that is cut out of text")
    number("chat", "share of such prompts that are messages in the model's chat template", float, "F")
    number("temperature", "of what the model writes", float, "X")
    features = "where texts and hidden states are kept, for several heads (default: OUT/features)"
    parser.add_argument("--features", metavar="FOLDER", help=features)
    parser.add_argument(
        "--executor", choices=("native", "reference"), default="native", help="what computes hidden states"
    )
    number("depth", "tokens that the head foresees (default: the kind's own)")
    number("draft-vocab", "tokens that it can propose, the most frequent ones; 0: all")
    losses = "; ".join(f"{name}: {meaning}" for name, meaning in LOSSES.items())
    parser.add_argument("--loss", choices=tuple(LOSSES), default=_DEFAULT.loss, help=losses)
    number("cold-start", "share of the steps that `soft` begins, before tv and e2e", float, "F")
    number("epochs", "times over the text")
    number("batch", "sequences of a step")
    number("lr", "highest learning rate (default: the kind's own)", float, "X")
    number("decay", "weight of a step ahead over the one before (default: the kind's own)", float, "X")
    number("seed", "of the order of sequences and of first weights")
    number("threads", "cores that compute (default: torch's choice)")
    parser.add_argument(
        "--float32", action="store_true", help="train in float32, where products are bfloat16 otherwise"
    )
    bits = "of the head's matrices as they are written; fewer are read faster, and change no text (default: 16)"
    parser.add_argument("--bits", type=int, choices=(16, 8, 4), default=_DEFAULT.bits, help=bits)
    number("verify", "held-out prompts that the engine answers with the trained head; 0: none")
    number("minutes", "stop training after so long; --resume goes on", float, "X")
    parser.add_argument("--resume", action="store_true", help="go on with what OUT holds, with the same flags")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.what == "ngram":
        for name in (*(each.name for each in fields(HeadOrder) if each.name not in SHARED), "kind", "float32"):
            default = None if name == "kind" else getattr(_DEFAULT, name, False)
            if getattr(args, name, default) != default:
                raise UsageError(f"train ngram: --{name.replace('_', '-')} is of head", param=name)
        return train_ngram.run(args)
    if args.kind is None or args.order is not None:
        raise UsageError("train head: --kind says which head; --order is of ngram", param="kind")
    args.tokens = _DEFAULT.tokens if args.tokens is None else args.tokens
    _check(args)
    names = ("model", "kind", "data", "tokens", "window", "generate", "prompt", "chat", "temperature", "executor")
    more = (
        "depth",
        "draft_vocab",
        "loss",
        "cold_start",
        "epochs",
        "batch",
        "lr",
        "decay",
        "seed",
        "threads",
        "minutes",
        "bits",
        "verify",
    )
    order = HeadOrder(
        **{name: getattr(args, name) for name in (*names, *more, "resume")},
        out=Path(args.out),
        features=Path(args.features) if args.features else None,
        bf16=not args.float32,
    )
    with progress("texts") as advance:
        report = train_head(order, lambda label, done, total: advance(done, total, label))
    _print(args, report)
    if args.json:
        print(json.dumps({"out": args.out, "kind": args.kind, **report.figures()}))
    return 0


def _check(args: argparse.Namespace) -> None:
    least = {"tokens": 64, "window": 32, "prompt": 1, "epochs": 1, "batch": 1, "depth": 1, "threads": 1}
    for name, bound in least.items():
        value = getattr(args, name)
        if value is not None and value < bound:
            raise UsageError(f"train: --{name} is at least {bound}", param=name)
    for name in ("generate", "draft_vocab", "seed", "verify"):
        if getattr(args, name) < 0:
            raise UsageError(f"train: --{name.replace('_', '-')} is at least 0", param=name)
    if args.generate and args.prompt + args.generate > args.window:
        said = f"a prompt of {args.prompt} and {args.generate} tokens behind it"
        raise UsageError(f"train: --window {args.window} does not hold {said}", param="window")
    if args.data == QUESTIONS and not args.generate:
        raise UsageError("train: --data questions needs --generate: they are there to be answered", param="data")
    if args.chat and not args.generate:
        raise UsageError("train: --chat needs --generate: messages are there to be answered", param="chat")
    for name in ("lr", "minutes"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UsageError(f"train: --{name} is above 0", param=name)
    for name in ("cold_start", "decay", "chat"):
        value = getattr(args, name)
        if value is not None and not 0 <= value <= 1:
            raise UsageError(f"train: --{name.replace('_', '-')} is from 0 to 1", param=name)


def _print(args: argparse.Namespace, report: HeadReport) -> None:
    size = f"{short(report.tokens)} tokens, {short(report.parameters)} weights"
    said = f"step {report.step} of {report.steps}, {report.seconds:.0f} s, {size}"
    if not report.done:
        print(f"{args.out}  {said}; go on with --resume")
        return
    found = report.acceptance
    rows = [
        (str(step), f"{100 * overlap:.1f} %", f"{100 * agreement:.1f} %")
        for step, (overlap, agreement) in enumerate(zip(found.overlap, found.agreement, strict=True), 1)
    ]
    rows.append(("tokens a step", f"{found.sampled_length:.2f}", f"{found.greedy_length:.2f}"))
    table("held-out text", ("draft accepted", "sampled", "greedy"), rows)
    if report.verified:
        _print_verified(report)
    covered = f"its vocabulary covers {100 * report.covered:.1f} % of the text"
    print(f"{args.out}  {said}; {covered}")


def _print_verified(report: HeadReport) -> None:
    depths = max(len(one.accepted_at) for one in report.verified)
    rows = []
    for one in report.verified:
        shares = [f"{100 * share:.0f} %" for share in one.accepted_at]
        name = f"temperature {one.temperature:g}" if one.temperature else "greedy"
        rows.append((name, f"{one.length:.2f}", *shares, *[""] * (depths - len(shares))))
    columns = ("", "tokens a step", *(f"draft {depth + 1}" for depth in range(depths)))
    table("as it serves", columns, rows)
