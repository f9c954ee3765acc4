"""Planned resident memory beside what an engine's process has in the end, its cache full.

    python bench/resident.py MODEL...

Planned: what `octavo plan` counts for four requests that share --tokens tokens of cache, best with a machine file of
`octavo calibrate`. All four run at once, so that every block is written.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

from octavo import LLM, SamplingParams
from octavo.cli.explain import config_of, load_program
from octavo.cli.machines import machine_of
from octavo.sim.parallel import Parallel
from octavo.sim.planning import memory_of

BLOCK, BATCH_TOKENS, REQUESTS = 16, 512, 4
OUTPUT = 96  # of each: the first still runs when the last begins


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(model: str, tokens: int, machine_name: str) -> None:
    """In a process of its own. Prints planned and measured bytes."""
    machine, _ = machine_of(machine_name)
    each = min(config_of(model).max_position, tokens // REQUESTS)
    memory = memory_of(load_program(model), machine, Parallel(), BATCH_TOKENS, REQUESTS)
    llm = LLM(model, num_blocks=REQUESTS * each // BLOCK, enable_prefix_caching=False)
    noise = random.Random(0)
    prompts = [
        {"prompt_token_ids": [noise.randrange(1000, 20000) for _ in range(each - OUTPUT)]} for _ in range(REQUESTS)
    ]
    llm.generate(prompts, SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True), use_tqdm=False)
    planned = memory.fixed + REQUESTS * memory.of_request(each, BLOCK)
    print(f"{planned:.0f} {resident()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="planned resident memory beside measured")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--machine", default="this")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.models[0], args.tokens, args.machine)
        return
    for model in args.models:
        words = [sys.executable, __file__, model, "--tokens", str(args.tokens), "--machine", args.machine, "--one"]
        planned, measured = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
        print(f"{Path(model).stem}: planned {planned / 1e6:,.1f} MB, resident {measured / 1e6:,.1f} MB")
        print(f"    {planned / measured - 1:+.1%}")


if __name__ == "__main__":
    main()
