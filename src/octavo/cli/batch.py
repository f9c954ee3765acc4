"""`octavo batch IN OUT --model M`: answers a file of requests; the same command again goes on where it stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from octavo.cli import flags
from octavo.cli.screen import capacity_table, progress
from octavo.engine.progress import CountBar
from octavo.engine.streams import AsyncLLM
from octavo.errors import UsageError
from octavo.server.app import create_app
from octavo.server.batch.files import Input, Output
from octavo.server.batch.run import Batch
from octavo.server.config import ServerConfig

SOME_REFUSED = 1  # exit code: the batch is complete, not every line got what it asked for


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("input", metavar="IN", help="requests, one a line: custom_id, method, url, body")
    parser.add_argument("output", metavar="OUT", help="answers, as they come; lines that it has are not asked again")
    parser.add_argument("--model", required=True, help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    parser.add_argument("--at-once", type=int, metavar="N", help="requests under way (default: 2 x --max-num-seqs)")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    flags.add_flags(parser, (flags.SERVED_MODEL_NAME,), "names")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    name = flags.resolve(args, (flags.SERVED_MODEL_NAME,))["served_model_name"]
    config = flags.engine_config(args, served_model_name=name)
    at_once = args.at_once or 2 * config.max_num_seqs
    if at_once < 1:
        raise UsageError("batch: --at-once is at least 1")
    given = Input.read(Path(args.input))
    with Output(Path(args.output), given) as output:
        before, total = len(output.answered), len(given.names)
        if before or output.dropped:
            again = f", {output.dropped} asked again" if output.dropped else ""
            print(f"{args.output}: {before} of {total} lines are answered already{again}", file=sys.stderr)
        with progress("loading") as advance:
            llm = AsyncLLM(config, progress=advance)
        with closing(llm):
            capacity_table(llm.info)
            app = create_app(llm, ServerConfig(max_queued_requests=2 * at_once + 64))
            began = time.perf_counter()
            with CountBar("batch", total - before) as bar:
                counts = asyncio.run(Batch(app, llm, given, output, bar.advance).run(at_once))
            seconds = time.perf_counter() - began
    print(
        f"{args.output}: {total} lines: {counts.answered} answered, {counts.refused} with errors, {counts.skipped} "
        f"before; {counts.prompt_tokens} prompt and {counts.output_tokens} output tokens in {seconds:.1f} s",
        file=sys.stderr,
    )
    if args.json:
        print(json.dumps({"model": llm.info.name, "lines": total, "seconds": seconds, **asdict(counts)}))
    return SOME_REFUSED if counts.refused else 0
