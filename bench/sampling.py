"""Time of choosing the tokens of one step: 32 rows, by vocabulary, by kind of request, by how flat the logits are.

    PYTHONPATH=src python bench/sampling.py [--threads 2] [--rows 32]

What is timed is Sampler.sample, Python included: medians over steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from octavo.request import Request, SamplingParams
from octavo.sampling.sampler import Sampler, SampleRow

STEPS = 40
VOCABULARIES = (49_152, 151_936)
SPREADS = {"peaked": 2.5, "flat": 0.3}  # standard deviation of normal logits
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-k 50, top-p 0.95": {"top_k": 50, "top_p": 0.95},
    "top-p 0.95": {"top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "greedy, 20 log-probabilities": {"temperature": 0.0, "logprobs": 20},
}


def measure(logits: np.ndarray[Any, Any], options: dict[str, Any], threads: int) -> float:
    """Microseconds of a step, the median."""
    count, vocab = logits.shape
    sampler = Sampler(vocab, threads)
    params = SamplingParams(**options)
    rng = np.random.default_rng(1)
    requests = [Request(str(i), tuple(rng.integers(0, vocab, 128).tolist()), params, seed=i) for i in range(count)]
    times = []
    for step in range(STEPS):
        rows = [SampleRow(request, row, 128 + step) for row, request in enumerate(requests)]
        start = time.perf_counter()
        chosen = sampler.sample(logits, rows)
        times.append(1e6 * (time.perf_counter() - start))
        for request, choice in zip(requests, chosen, strict=True):
            request.output_ids.append(choice.token_id)
    return statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    columns = [(vocab, name) for vocab in VOCABULARIES for name in SPREADS]
    print(f"{'':>30} " + " ".join(f"{f'{vocab // 1000}k {name}':>12}" for vocab, name in columns) + "   microseconds")
    logits = {c: rng.normal(0, SPREADS[c[1]], (args.rows, c[0])).astype(np.float32) for c in columns}
    for kind, options in KINDS.items():
        figures = [measure(logits[column], options, args.threads) for column in columns]
        print(f"{kind:>30} " + " ".join(f"{figure:>12,.0f}" for figure in figures))


if __name__ == "__main__":
    main()
