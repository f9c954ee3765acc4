"""Planned resident memory beside what an engine's process has in the end, its cache filled once.

    python bench/resident.py MODEL...

Planned: the process before any model, weights as they are held, values of a step, and the cache of --tokens tokens.
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
from octavo.cli.machines import this_machine
from octavo.sim.parallel import Parallel
from octavo.sim.planning import memory_of

BLOCK = 16


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(model: str, tokens: int) -> None:
    """In a process of its own. Prints planned and measured bytes."""
    process = resident()
    program = load_program(model)
    machine, _ = this_machine()
    llm = LLM(model, num_blocks=tokens // BLOCK, enable_prefix_caching=False)
    noise = random.Random(0)
    length = min(config_of(model).max_position, 4096) - 8
    prompts = []
    for _ in range(tokens // (length + 8)):
        prompts.append({"prompt_token_ids": [noise.randrange(1000, 20000) for _ in range(length)]})
    llm.generate(prompts, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True), use_tqdm=False)
    memory = memory_of(program, machine, Parallel(), 512)
    planned = process + sum(memory.weights.values()) + memory.values + memory.of_request(tokens, BLOCK)
    print(f"{planned:.0f} {resident()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="planned resident memory beside measured")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.models[0], args.tokens)
        return
    for model in args.models:
        words = [sys.executable, __file__, model, "--tokens", str(args.tokens), "--one"]
        planned, measured = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
        print(f"{Path(model).stem}: planned {planned / 1e6:,.1f} MB, resident {measured / 1e6:,.1f} MB")
        print(f"    {planned / measured - 1:+.1%}")


if __name__ == "__main__":
    main()
