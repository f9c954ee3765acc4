"""The loop of a peer that stays in memory between measurements; runs inside the peer's own environment.

On stdin, one JSON object a line: {"batch", "prompt", "steps", "seed"}. On stdout, a line each: {"prefill", "decode"} in
tokens a second. The first line out, after a run to warm up, is {"version", "load_s"}. Needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import TextIO

# (prompts, tokens to generate a prompt) -> arrival times of every generated token of every request, the start first
Generate = Callable[[list[list[int]], int], tuple[float, list[list[float]]]]
WARM_UP = (2, 512, 4)  # requests, prompt tokens, steps: of a run that nobody counts, as the others have one too
FIRST_ID, LAST_ID = 1000, 49000  # ids of ordinary text in the vocabularies that are measured


def prompts(batch: int, length: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(FIRST_ID, LAST_ID) for _ in range(length)] for _ in range(batch)]


def rates(start: float, arrivals: list[list[float]], prompt: int) -> dict[str, float]:
    """Prefill: prompt tokens until every request has a token. Decode: tokens that arrive while all of them decode."""
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    tokens = sum(begin < time <= end for times in arrivals for time in times)
    return {
        "prefill": len(arrivals) * prompt / (begin - start),
        "decode": tokens / (end - begin) if end > begin else 0.0,
    }


def claim_stdout() -> TextIO:
    """Stdout for answers alone; from here on, what the peer prints goes to stderr. Call it before the peer starts."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def serve(out: TextIO, version: str, began: float, generate: Generate) -> None:
    """Answers until stdin ends."""
    generate(prompts(*WARM_UP[:2], seed=-1), WARM_UP[2])
    print(json.dumps({"version": version, "load_s": round(time.perf_counter() - began, 2)}), file=out, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        start, arrivals = generate(prompts(job["batch"], job["prompt"], job["seed"]), job["steps"])
        counts = {len(times) for times in arrivals}
        if counts != {job["steps"]}:
            answer: dict[str, object] = {"error": f"asked for {job['steps']} tokens a request, got {sorted(counts)}"}
        else:
            answer = dict(rates(start, arrivals, job["prompt"]))
        print(json.dumps(answer), file=out, flush=True)
