"""Time of choosing the tokens of one step: 32 rows, by vocabulary, by kind of request, by how flat the logits are.

    PYTHONPATH=src python bench/sampling.py [--threads 2] [--rows 32] [--array]

What is timed is the sampling of a step of decodes as the runner has it done, Python included: one call of a cohort, or
Sampler.sample where a request wants more than its next token. The least and the median over steps. Logits are those of
a session that is nothing but a random head, which computes them anew before each step, as a model does; --array: the
same from an array, without what a session keeps beside its logits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.program.builder import Builder
from octavo.request import Request, Row, SamplingParams
from octavo.runner.batch import HeaderWriter
from octavo.sampling.sampler import Sampler, SampleRow
from octavo.weights.kinds import Tensor

STEPS = 40
VOCABULARIES = (49_152, 151_936)
SPREADS = {"peaked": 2.5, "flat": 0.3}  # standard deviation of the logits
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-k 50, top-p 0.95": {"top_k": 50, "top_p": 0.95},
    "top-p 0.95": {"top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "greedy, 20 log-probabilities": {"temperature": 0.0, "logprobs": 20},
}


WIDTH = 64


def bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Head:
    """Logits [rows, vocab], normal with this deviation, from a matrix of WIDTH columns."""

    def __init__(self, rows: int, vocab: int, deviation: float, threads: int) -> None:
        b, rng = Builder("main"), np.random.default_rng(0)
        b.embed("x", "token", b.weight("rows", (rows, WIDTH), hf="", gguf=""))
        norm = b.weight("norm", (WIDTH,), hf="", gguf="")
        b.norm("h", b.take("last", "x", "logit_row"), norm, eps=1e-6, dtype="act")
        b.linear("logits", "h", b.weight("head", (vocab, WIDTH), hf="", gguf=""))
        b.export("logits")
        executor = executor_for("native")
        program = executor.lower(b.build(), {"rows": "bf16", "norm": "f32", "head": "bf16"})
        matrix = rng.normal(0, deviation / WIDTH**0.5, (vocab, WIDTH))
        tensors = [
            ("rows", Tensor("bf16", (rows, WIDTH), bits(rng.normal(0, 1, (rows, WIDTH))))),
            ("norm", Tensor("f32", (WIDTH,), np.ones(WIDTH, np.float32))),
            ("head", Tensor("bf16", (vocab, WIDTH), bits(matrix))),
        ]
        limits = Limits(rows, rows, rows, 16, rows + 1, 16)
        self._session = executor.open({"main": program}, lambda: iter(tensors), limits, threads=threads)
        self._header = HeaderWriter(rows, rows, rows).write([Row(str(i), i, 0, (i,), 0, True) for i in range(rows)])
        self.rows, self.vocab = rows, vocab

    def run(self) -> None:
        self._session.run("main", self._header)

    def logits(self, *, array: bool) -> Any:
        return self._session.view("logits") if array else self._session.logits("logits")


def measure(head: Head, options: dict[str, Any], threads: int, *, array: bool) -> str:
    """Microseconds of a step, the least and the median."""
    sampler = Sampler(head.vocab, threads)
    params = SamplingParams(**options)
    rng = np.random.default_rng(1)
    prompts = rng.integers(0, head.vocab, (head.rows, 128)).tolist()
    requests = [Request(str(i), tuple(prompt), params, seed=i) for i, prompt in enumerate(prompts)]
    cohort, writer, times = sampler.cohort(requests), HeaderWriter(head.rows, head.rows, head.rows), []
    for step in range(STEPS):
        head.run()
        at = 127 + step  # of the last known token
        rows = [SampleRow(request, row, at + 1) for row, request in enumerate(requests)]
        header = writer.write([Row(r.id, i, at, (r.token(at),), 0, True) for i, r in enumerate(requests)])
        start = time.perf_counter()
        if cohort is not None:
            chosen = cohort.sample(head.logits(array=array), header)
        else:
            chosen = [one.token_id for one in sampler.sample(head.logits(array=array), rows)]
        times.append(1e6 * (time.perf_counter() - start))
        for request, token in zip(requests, chosen, strict=True):
            request.output_ids.append(token)
    return f"{min(times[5:]):,.0f} / {statistics.median(times[5:]):,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--array", action="store_true")
    args = parser.parse_args()
    columns = [(vocab, name) for vocab in VOCABULARIES for name in SPREADS]
    print(f"{'':>30} " + " ".join(f"{f'{vocab // 1000}k {name}':>15}" for vocab, name in columns) + "   microseconds")
    heads = [Head(args.rows, vocab, SPREADS[name], args.threads) for vocab, name in columns]
    for kind, options in KINDS.items():
        figures = [measure(head, options, args.threads, array=args.array) for head in heads]
        print(f"{kind:>30} " + " ".join(f"{figure:>15}" for figure in figures))


if __name__ == "__main__":
    main()
