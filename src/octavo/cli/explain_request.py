"""`octavo explain --request ID`: where the time of one request went, from the server that answered it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from octavo.cli.remote import Remote
from octavo.cli.screen import table
from octavo.cli.times import seconds


def run(args: argparse.Namespace) -> int:
    record = Remote(args.url).json(f"v1/requests/{quote(args.request, safe='')}")
    table("", ("request", record["id"]), list(facts(record)))
    for choice in record["choices"]:
        title = f"choice {choice['index']}" if len(record["choices"]) > 1 else ""
        table(title, ("time", ""), list(times(record, choice)))
    for place, prompt in enumerate(record["prompts"]):
        if prompt is None:
            print("prompt: not kept (serve --keep-prompts keeps them)")
            break
        print(f"prompt{f' {place}' if len(record['prompts']) > 1 else ''}:\n{prompt}")
    if args.json:
        print(json.dumps(record))
    return 0


def facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model", record["model"]
    yield "route", f"{record['route']}, status {record['status'] or 'none yet'}"
    yield "arrived", datetime.fromtimestamp(record["created"]).isoformat(" ")
    yield "state", record["state"]
    share = record["cached_tokens"] / max(record["prompt_tokens"], 1)
    yield "prompt", f"{record['prompt_tokens']} tokens, {record['cached_tokens']} from the prefix cache ({share:.0%})"
    rate = record["tokens_per_second"]
    yield "output", f"{record['output_tokens']} tokens" + (f", {rate:.1f}/s after the first" if rate else "")
    asked = {name: value for name, value in (record["sampling"] or {}).items() if value is not None}
    yield "sampling", ", ".join(f"{name} {value}" for name, value in asked.items())
    if (structure := record["structure"]) is not None:
        yield "structure", f"{structure['kind']}, {structure['characters']} characters"
        yield (
            "grammar",
            f"compiled in {seconds(structure['compile_seconds'])}, masks {seconds(structure['mask_seconds'])}",
        )


def times(record: Mapping[str, Any], choice: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "before the engine", seconds(record["prepare_seconds"])
    yield "queue", seconds(choice["queue_seconds"])
    yield "prefill", seconds(choice["prefill_seconds"])
    yield "decode", seconds(choice["decode_seconds"])
    yield "longest gap", seconds(choice["longest_gap_seconds"])
    if choice["mask_seconds"]:
        yield "masks", seconds(choice["mask_seconds"])
    if choice["drafts"]:
        said = f"{choice['drafts_accepted']} of {choice['drafts']} accepted"
        yield "drafts", f"{said}, {choice['acceptance_length']:.2f} tokens a step that had any"
    yield "whole request", seconds(record["seconds"])
    yield "preemptions", str(choice["preemptions"])
    yield "seed", str(choice["seed"])
    stop = choice["stop_reason"]
    yield "ended by", f"{choice['finish_reason'] or 'nothing yet'}{f' ({stop!r})' if stop is not None else ''}"
