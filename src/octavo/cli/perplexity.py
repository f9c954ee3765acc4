"""`octavo perplexity MODEL TEXT`: perplexity of a text; with --against reference, fidelity of the native numerics."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack, closing
from dataclasses import asdict, replace

from octavo.cli import flags
from octavo.cli.screen import progress, read_text, table
from octavo.engine.fidelity import Fidelity, Scorer, score, summarize, windows
from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    parser.add_argument("text", help="a UTF-8 text file")
    parser.add_argument("--against", choices=("reference",), help="compare with the torch reference in float32")
    parser.add_argument("--window-context", type=int, default=512, metavar="N", help="least context of a scored token")
    parser.add_argument("--score-tokens", type=int, metavar="N", help="score about so many tokens (default: all)")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    config = flags.engine_config(args)
    context = args.window_context
    if context < 1 or (args.score_tokens is not None and args.score_tokens < 1):
        raise UsageError("perplexity: --window-context and --score-tokens are at least 1")
    ids = load_tokenizer(args.model).encode(read_text(args.text), add_special=True)
    cut = windows(ids, context, args.score_tokens)
    with ExitStack() as opened:
        with progress("loading") as advance:
            one = opened.enter_context(closing(Scorer(config, context, advance)))
            other = None
            if args.against:
                exact = replace(
                    config, executor="reference", dtype="float32", isa=None, activations="auto", kv_dtype="auto"
                )
                other = opened.enter_context(closing(Scorer(exact, context, advance)))
        with progress("scoring") as advance:
            result = summarize(score(one, other, cut, context, advance))
    rows = [("tokens scored", str(result.tokens)), (f"perplexity, {one.numerics}", f"{result.perplexity:.4f}")]
    if other is not None:
        rows += fidelity_rows(result, other.numerics)
    table(args.text, ("", "value"), rows)
    if args.json:
        print(json.dumps({"model": args.model, "text": args.text, "numerics": one.numerics, **asdict(result)}))
    return 0


def fidelity_rows(result: Fidelity, against: str) -> list[tuple[str, str]]:
    return [
        (f"perplexity, {against}", f"{result.other_perplexity:.4f}"),
        ("perplexity shift (95 % bound)", f"{result.perplexity_shift:.4%} ({result.perplexity_shift_bound:.4%})"),
        ("mean KL (95 % bound)", f"{result.kl:.2e} ({result.kl_bound:.2e})"),
        ("top-1 agreement (95 % bound)", f"{result.top1:.3%} ({result.top1_bound:.3%})"),
    ]
