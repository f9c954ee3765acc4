"""What a rule that asks for chances makes of a real drafter: many requests of one prompt, counted by their first tokens
and held against the model's own distribution by chi-square.

    python -m exactness.drawing KIND RULE [--draws N]        at length; the suite draws less
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from chance import chi_square

from exactness import heads, kinds
from exactness.harness import House, key
from octavo.request import Request, SamplingParams

PROMPT = (17, 101, 40, 8)
TOKENS, TOP = 3, 3  # tokens of an output that are counted, and that may come after each beginning
WARM = 1.3
SEQS = 64


class Quiet(House):
    """Keeps no rows."""

    def _record(self):
        pass


def asked(name, prompt, seed, tokens):
    params = SamplingParams(temperature=WARM, top_k=TOP, max_tokens=tokens, ignore_eos=True)
    return Request(name, prompt, params, seed=seed)


def expected(model):
    """Chances of every output of so many tokens, of the model's logits alone."""
    house, found = House(model, threads=1), {(): 1.0}
    for depth in range(TOKENS):
        run = house.run([asked(f"{depth}/{tokens}", (*PROMPT, *tokens), 1, 1) for tokens in found])
        after = {}
        for tokens, chance in found.items():
            logits = np.frombuffer(run.rows[key((*PROMPT, *tokens))], np.float32).astype(np.float64)
            best = np.argsort(-logits, kind="stable")[:TOP]
            shares = np.exp((logits[best] - logits[best[0]]) / WARM)
            for token, share in zip(best, shares / shares.sum(), strict=True):
                after[(*tokens, int(token))] = chance * share
        found = after
    house.close()
    return found


def counted(model, drafter, rule, draws, *, first=0):
    """(outputs by their first tokens, drafts accepted, rejected). A token more is asked for than is counted: the last
    one of a request is never drafted."""
    house = Quiet(model, drafter=drafter, threads=2, verify=rule, max_num_seqs=SEQS, max_num_batched_tokens=1024)
    run = house.run([asked(f"d{n}", PROMPT, first + n, TOKENS + 1) for n in range(draws)])
    house.close()
    counts = Counter(output[:TOKENS] for output in run.outputs.values())
    return counts, run.stats["drafts_accepted"], run.stats["drafts_rejected"]


def held(counts, chances):
    """(statistic, its 99.9 % point)"""
    assert counts.keys() <= chances.keys(), "what cannot come has come"
    draws = sum(counts.values())
    outputs = list(chances)
    return chi_square([counts[output] for output in outputs], [chances[output] * draws for output in outputs])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=kinds.KINDS)
    parser.add_argument("rule", choices=("equal", "residual", "block"))
    parser.add_argument("--draws", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kind, at = kinds.KINDS[given.kind], Path(folder)
        made = kinds.world(kind.world, at / "model")
        maker = kind.make(made, at / "drafter")
        chances, counts, taken, begun = expected(made.model), Counter(), [0, 0], time.monotonic()
        for first in range(0, given.draws, 5000):
            drafter = maker(heads.open_target(made.model, verify=given.rule))
            more, *drafts = counted(made.model, drafter, given.rule, min(5000, given.draws - first), first=first)
            counts += more
            taken = [one + other for one, other in zip(taken, drafts, strict=True)]
        statistic, point = held(counts, chances)
        print(
            f"{given.kind}, {given.rule}: {given.draws} draws of {TOKENS} tokens, {len(chances)} outputs; "
            f"{taken[0]} drafts accepted, {taken[1]} rejected; chi-square {statistic:.1f}, 99.9 % point {point:.1f}; "
            f"{time.monotonic() - begun:.0f} s"
        )
        return statistic > point


if __name__ == "__main__":
    raise SystemExit(main())
