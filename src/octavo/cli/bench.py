"""`octavo bench MODEL`: prefill and decode speed of the whole engine, Python included.

Prompts are random and share nothing. Prefill: --prompts requests at once, all their tokens from submit to the last
first token; never a prefix hit. Decode at batch B: tokens that arrive while all B requests are decoding, over that
time; their contexts are computed once, ahead, and are prefix hits from then on (without prefix caching each run
computes them). Medians over --repeats. --workload mixed runs many requests of unlike lengths: output tokens over the
whole time. Nobody proposes drafts, but where --speculate compares who does.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.cli import bench_speculate, flags
from octavo.cli.screen import capacity_table, progress, table
from octavo.config import EngineConfig
from octavo.engine.executor import ThreadEngine
from octavo.engine.port import Sink
from octavo.errors import EngineError, UsageError
from octavo.request import Request, SamplingParams, TokenDelta

_ENGINE = tuple(flag for flag in flags.ENGINE_FLAGS if flag.name != "speculate")  # of which bench has its own
MIXED_SEQUENCES, MIXED_LENGTHS = 256, (100, 1024)


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    flags.add_flags(parser, flags.BENCH_FLAGS, "measurement")
    flags.add_flags(parser, _ENGINE, "engine")


def run(args: argparse.Namespace) -> int:
    plan = flags.resolve(args, flags.BENCH_FLAGS)
    batches: tuple[int, ...] = plan["batch"]
    least = min((*batches, plan["prompt_tokens"], plan["prompts"], plan["repeats"], plan["context"]), default=0)
    if not batches or least < 1 or plan["decode_steps"] < 2:
        what = "--batch, --prompt-tokens, --prompts, --context and --repeats are at least 1, --decode-steps at least 2"
        raise UsageError(f"bench: {what}")

    def configured(**over: Any) -> EngineConfig:
        return EngineConfig(model=args.model, **{"speculate": "off", **flags.resolve(args, _ENGINE), **over})

    config = configured()
    for name, count in (("batch", max(batches)), ("prompts", plan["prompts"])):
        if count > config.max_num_seqs:
            raise UsageError(f"--{name} {count} is more than --max-num-seqs {config.max_num_seqs}", param=name)
    if plan["speculate"]:
        document = bench_speculate.run(args, plan, configured)
        if args.json:
            print(json.dumps(document))
        return 0
    sequences = round(MIXED_SEQUENCES * plan["scale"])
    if not 1 <= sequences <= MIXED_SEQUENCES:
        raise UsageError(f"--scale is above 0 and at most 1, not {plan['scale']:g}", param="scale")
    with progress("loading") as advance:
        engine = ThreadEngine(config, progress=advance)
    try:
        if engine.info.task == "embed":
            raise UsageError(f"{args.model}: embeds and does not generate, which bench measures", param="model")
        capacity_table(engine.info)
        mixed = plan["workload"] == "mixed"
        result = _mixed(engine, sequences) if mixed else _speeds(engine, plan)
    finally:
        engine.close()
    table("", ("whole engine", "tok/s"), result.rows)
    if args.json:
        print(json.dumps({**_summary(engine, args.model), **result.fields}))
    return 0


@dataclass(frozen=True, slots=True)
class Result:
    """rows: what was measured, and tokens a second. fields: of the JSON."""

    rows: list[tuple[str, str]]
    fields: dict[str, Any]


def _speeds(engine: ThreadEngine, plan: dict[str, Any]) -> Result:
    count, tokens, context = plan["prompts"], plan["prompt_tokens"], plan["context"]
    clock = Stopwatch(engine)
    clock.prefill(1, tokens)  # warm-up
    repeats = range(plan["repeats"])
    prefill = statistics.median(clock.prefill(count, tokens) for _ in repeats)
    contexts = clock.contexts(max(plan["batch"]), context)
    decode = {
        batch: statistics.median(clock.decode(contexts[:batch], plan["decode_steps"]) for _ in repeats)
        for batch in plan["batch"]
    }
    rows = [(f"prefill, {f'{count} x ' if count > 1 else ''}{tokens} tokens", f"{prefill:,.0f}")]
    rows += [(f"decode, batch {batch}, context {context}", f"{rate:,.0f}") for batch, rate in decode.items()]
    fields = {
        "prompts": count,
        "prompt_tokens": tokens,
        "context": context,
        "prefill_tok_s": round(prefill, 1),
        "decode_tok_s": {str(batch): round(rate, 1) for batch, rate in decode.items()},
    }
    return Result(rows, fields)


def _mixed(engine: ThreadEngine, sequences: int) -> Result:
    """The offline workload that small engines quote: inputs and outputs uniform in 100 .. 1024, seed 0."""
    noise = random.Random(0)
    vocabulary = min(engine.info.vocab_size, 10_001)
    shortest, longest = MIXED_LENGTHS
    prompts = [
        tuple(noise.randrange(vocabulary) for _ in range(noise.randint(shortest, longest))) for _ in range(sequences)
    ]
    outputs = [noise.randint(shortest, longest) for _ in range(sequences)]
    clock = Stopwatch(engine)
    clock.prefill(1, shortest)  # warm-up
    begun = time.perf_counter()
    clock.run(prompts, outputs, temperature=0.6)
    seconds = time.perf_counter() - begun
    inputs, total = sum(map(len, prompts)), sum(outputs)
    rate = total / seconds
    rows = [(f"output, {sequences} sequences, {inputs:,} tokens in, {total:,} out", f"{rate:,.0f}")]
    fields = {"sequences": sequences, "input_tokens": inputs, "output_tokens": total, "seconds": round(seconds, 4)}
    return Result(rows, {"workload": "mixed", **fields, "output_tok_s": round(rate, 1)})


def _summary(engine: ThreadEngine, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "weights_bytes": engine.info.weights_bytes,
        "threads": engine.info.threads,
        "isa": engine.info.isa,
        "numerics": engine.info.numerics,
        "load_s": round(engine.info.load_seconds, 3),
    }


class Stopwatch:
    """Submits requests and notes when each token arrives. Times in seconds of a monotonic clock."""

    def __init__(self, engine: ThreadEngine) -> None:
        self.engine = engine
        self._random = random.Random(0)
        self._number = 0

    def prefill(self, count: int, tokens: int) -> float:
        """Prompt tokens a second of `count` requests: until the last one's first token."""
        start = time.perf_counter()
        arrivals = self.run([self._prompt(tokens) for _ in range(count)], [1] * count)
        return count * tokens / (max(times[0] for times in arrivals) - start)

    def contexts(self, count: int, tokens: int) -> list[tuple[int, ...]]:
        """Prompts whose keys and values are in the cache, as far as it holds them."""
        prompts = [self._prompt(tokens) for _ in range(count)]
        self.run(prompts, [1] * count)
        return prompts

    def decode(self, prompts: Sequence[tuple[int, ...]], steps: int) -> float:
        """Tokens a second of all requests together."""
        runs = self.run(prompts, [steps + 1] * len(prompts))
        begin, end = max(times[0] for times in runs), min(times[-1] for times in runs)
        tokens = sum(begin < arrival <= end for times in runs for arrival in times)
        if end <= begin:
            what = f"batch {len(prompts)} never decoded together"
            raise UsageError(f"{what}: raise --decode-steps or --kv-memory, or leave prefix caching on")
        return tokens / (end - begin)

    def run(
        self, prompts: Sequence[tuple[int, ...]], outputs: Sequence[int], temperature: float = 0.0
    ) -> list[list[float]]:
        """Arrival times of every token of requests that are submitted together."""
        count = len(prompts)
        arrivals: list[list[float]] = [[] for _ in range(count)]
        left, ended = threading.Semaphore(0), [""] * count
        for prompt, output in zip(prompts, outputs, strict=True):
            self.engine.info.check(len(prompt), output)

        def listener(number: int) -> Sink:
            def listen(delta: TokenDelta) -> None:
                arrivals[number].extend([time.perf_counter()] * len(delta.token_ids))
                if delta.finish_reason is not None:
                    ended[number] = delta.finish_reason
                    left.release()

            return listen

        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            self._number += 1
            params = SamplingParams(temperature=temperature, max_tokens=output, ignore_eos=True)
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
