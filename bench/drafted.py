"""Drafts change nothing, on a real model: ids and log-probabilities of many prompts with drafters beside those without.

    python bench/drafted.py MODEL KIND [KIND ...] [--prompts N] [--tokens N]      KIND as --speculate has it

Prompts are pieces of Python's own help texts. Half are greedy; the others sample, with penalties, top-k, min-p and
seeds of their own. Plain: one at a time, nothing reused. Each kind: one at a time; in batches of 17 with prompts in
pieces of 48 tokens and too few blocks, so that some are preempted; and the same prompts again, found in the cache.
Exits with 1 where one bit differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from octavo.engine.llm import LLM
from octavo.request import SamplingParams

PIECE = 400  # characters of a prompt
EDITS = (
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 40, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1},
)
CONDITIONS = {
    "alone": {"max_num_seqs": 1, "enable_prefix_caching": False},
    "batches of 17": {"max_num_seqs": 17, "max_num_batched_tokens": 48, "num_blocks": 150},
}


def prompts(count: int) -> list[str]:
    texts = [text for _, text in sorted(topics.items()) if len(text) > 2 * PIECE]
    return [texts[i % len(texts)][i // len(texts) * PIECE :][:PIECE] for i in range(count)]


def params(count: int, tokens: int) -> list[SamplingParams]:
    shared = {"max_tokens": tokens, "logprobs": 1, "ignore_eos": True}
    edits = [EDITS[i // 2 % len(EDITS)] if i % 2 else {"temperature": 0.0} for i in range(count)]
    return [SamplingParams(**shared, **edit, seed=i) for i, edit in enumerate(edits)]


def outputs(llm: LLM, asked: list[str], chosen: list[SamplingParams]) -> tuple[list[object], str]:
    begun = time.perf_counter()
    found = llm.generate(asked, chosen, use_tqdm=False)
    seconds = time.perf_counter() - begun
    drafts = sum((one.drafts for one in found[1:]), found[0].drafts)
    tokens = sum(len(one.outputs[0].token_ids) for one in found)
    said = (
        f"{tokens / seconds:7.1f} tokens/s, {drafts.accepted} of {drafts.proposed} drafts, length {drafts.length:.2f}"
    )
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in found], said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--prompts", type=int, default=56)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    asked, chosen = prompts(args.prompts), params(args.prompts, args.tokens)
    with LLM(args.model, speculate="off", **CONDITIONS["alone"]) as llm:
        plain, said = outputs(llm, asked, chosen)
    print(f"{'off':24} {'alone':16} {said}", flush=True)
    wrong = 0
    for kind in args.kinds:
        for name, options in CONDITIONS.items():
            with LLM(args.model, speculate=kind, **options) as llm:
                for again in ("", ", again")[: 1 + (name != "alone")]:
                    found, said = outputs(llm, asked, chosen)
                    differ = sum(one != other for one, other in zip(found, plain, strict=True))
                    wrong += differ
                    stats = llm.stats()
                    print(
                        f"{kind[-24:]:24} {name + again:16} {said}; {differ} differ; {stats.preemptions} preempted, ",
                        end="",
                    )
                    print(f"{stats.cached_tokens} tokens found", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
