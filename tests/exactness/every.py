"""Every drafter beside plain decoding, at length: `python -m exactness.every [KIND ...] [--prompts N] [--tokens N]`.

Tiny models and drafters of kinds.py; each request alone without drafts, then all in batches of 17 with prompts in
pieces and too few blocks, then again with what the cache has of them. A line a kind; ends with 1 where a bit differs.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from exactness import heads, kinds
from exactness.harness import House, prompts
from exactness.test_exactness import fresh
from octavo.request import Request


def asked(count, tokens):
    """As heads.asked() edits them, with more prompts and longer outputs; forms end by themselves."""
    models = heads.asked()
    lengths = [7 + 13 * n % 150 for n in range(count)]
    found = []
    for n, prompt in enumerate(prompts(heads.VOCAB, lengths, seed=11)):
        like = models[n % len(models)]
        params = replace(like.params, max_tokens=tokens)
        found.append(Request(f"q{n}", tuple(prompt), params, seed=n, eos_ids=like.eos_ids))
    return found


def run(model, requests, drafter=None, **options):
    house = House(model, drafter=drafter, threads=1, max_num_seqs=17, **options)
    runs = []
    for one in (requests, fresh(requests)) if drafter is not None else ([each] for each in requests):
        found = house.run(list(one))
        runs.append((found, heads.logprobs(house)))
    house.close()
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(kinds.KINDS))
    parser.add_argument("--prompts", type=int, default=56)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    requests, worlds, wrong = asked(given.prompts, given.tokens), {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(given.kinds):
            kind = kinds.KINDS[name]
            if kind.world not in worlds:
                world = kinds.world(kind.world, Path(folder) / f"world{number}")
                runs = run(world.model, fresh(requests), enable_prefix_caching=False)
                outputs = {key: value for one, _ in runs for key, value in one.outputs.items()}
                scores = {key: value for _, one in runs for key, value in one.items()}
                worlds[kind.world] = world, outputs, scores
            world, outputs, scores = worlds[kind.world]
            target = heads.open_target(world.model, max_num_batched_tokens=64)
            drafter = heads.Watched(kind.make(world, Path(folder) / f"drafter{number}")(target))
            limits = {"max_num_batched_tokens": 64, "num_blocks": 120}
            (first, told), (again, retold) = run(world.model, fresh(requests), drafter, **limits)
            differ = sum(first.outputs[one] != outputs[one] or told.get(one) != scores.get(one) for one in outputs)
            differ += sum(again.outputs[one] != outputs[one] or retold.get(one) != scores.get(one) for one in outputs)
            wrong += differ
            taken = first.stats["drafts_accepted"] + again.stats["drafts_accepted"]
            left = first.stats["drafts_rejected"] + again.stats["drafts_rejected"]
            print(
                f"{name:22} {differ} differ; {taken} of {taken + left} drafts; of {drafter.drafted} rows with any "
                f"{drafter.deep} took two or more, {drafter.aside} one beside an older sibling; "
                f"{first.stats['preemptions']} preempted, {again.stats['cached_tokens']} tokens found",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
