"""`octavo bench MODEL`: prefill and decode speed of the whole engine, Python included.

Every prompt is different, so that nothing is a prefix hit. Prefill: submit to first token of one request. Decode at
batch B: tokens that arrive while all B requests are decoding, over that time. Medians over --repeats.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time

from octavo.cli import flags
from octavo.cli.screen import capacity_table, progress, table
from octavo.engine.executor import ThreadEngine
from octavo.engine.port import Sink
from octavo.errors import EngineError, UsageError
from octavo.request import Request, SamplingParams, TokenDelta


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    flags.add_flags(parser, flags.BENCH_FLAGS, "measurement")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    plan = flags.resolve(args, flags.BENCH_FLAGS)
    batches: tuple[int, ...] = plan["batch"]
    if not batches or min(batches) < 1 or plan["decode_steps"] < 2 or plan["prompt_tokens"] < 1 or plan["repeats"] < 1:
        raise UsageError("bench: --batch, --prompt-tokens and --repeats are at least 1, --decode-steps at least 2")
    config = flags.engine_config(args)
    if max(batches) > config.max_num_seqs:
        raise UsageError(f"--batch {max(batches)} is more than --max-num-seqs {config.max_num_seqs}", param="batch")
    with progress("loading") as advance:
        engine = ThreadEngine(config, progress=advance)
    try:
        capacity_table(engine.info)
        clock = Stopwatch(engine)
        clock.prefill(plan["prompt_tokens"])  # warm-up
        repeats = range(plan["repeats"])
        prefill = statistics.median(clock.prefill(plan["prompt_tokens"]) for _ in repeats)
        decode = {
            batch: statistics.median(clock.decode(batch, plan["context"], plan["decode_steps"]) for _ in repeats)
            for batch in batches
        }
    finally:
        engine.close()
    rows = [(f"prefill, {plan['prompt_tokens']} tokens", f"{prefill:,.0f}")]
    rows += [(f"decode, batch {batch}, context {plan['context']}", f"{rate:,.0f}") for batch, rate in decode.items()]
    table("", ("whole engine", "tok/s"), rows)
    if args.json:
        print(json.dumps(_summary(engine, args.model, prefill, decode)))
    return 0


def _summary(engine: ThreadEngine, model: str, prefill: float, decode: dict[int, float]) -> dict[str, object]:
    return {
        "model": model,
        "weights_bytes": engine.info.weights_bytes,
        "threads": engine.info.threads,
        "isa": engine.info.isa,
        "load_s": round(engine.info.load_seconds, 3),
        "prefill_tok_s": round(prefill, 1),
        "decode_tok_s": {str(batch): round(rate, 1) for batch, rate in decode.items()},
    }


class Stopwatch:
    """Submits requests and notes when each token arrives. Times in seconds of a monotonic clock."""

    def __init__(self, engine: ThreadEngine) -> None:
        self.engine = engine
        self._random = random.Random(0)
        self._number = 0

    def prefill(self, tokens: int) -> float:
        """Prompt tokens a second."""
        start = time.perf_counter()
        [arrivals] = self._run(1, tokens, 1)
        return tokens / (arrivals[0] - start)

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Tokens a second of all requests together."""
        runs = self._run(batch, context, steps + 1)
        begin, end = max(times[0] for times in runs), min(times[-1] for times in runs)
        tokens = sum(begin < arrival <= end for times in runs for arrival in times)
        if end <= begin:
            raise UsageError(f"batch {batch} never decoded together: raise --decode-steps or --kv-memory")
        return tokens / (end - begin)

    def _run(self, count: int, prompt_tokens: int, output_tokens: int) -> list[list[float]]:
        """Arrival times of every token of `count` requests that run together."""
        arrivals: list[list[float]] = [[] for _ in range(count)]
        left, ended = threading.Semaphore(0), [""] * count
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        prompts = [self._prompt(prompt_tokens) for _ in range(count)]
        self.engine.info.check(prompt_tokens, output_tokens)

        def listener(number: int) -> Sink:
            def listen(delta: TokenDelta) -> None:
                arrivals[number].extend([time.perf_counter()] * len(delta.token_ids))
                if delta.finish_reason is not None:
                    ended[number] = delta.finish_reason
                    left.release()

            return listen

        for number, prompt in enumerate(prompts):
            self._number += 1
            request = Request(f"bench-{self._number}", prompt, params)
            self.engine.submit(request, listener(number))
        for _ in range(count):
            left.acquire()
        if any(reason != "length" for reason in ended):
            raise EngineError(f"a request ended with {ended!r} in the middle of the measurement")
        return arrivals

    def _prompt(self, tokens: int) -> tuple[int, ...]:
        size: int = self.engine.info.vocab_size
        return tuple(self._random.randrange(size) for _ in range(tokens))
