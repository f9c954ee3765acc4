"""A drafter for tests: a one-layer program of its own in the target's session, and proposals by a script.

Its program reads the target's tap, keeps its own K and V on the target's group, and follows every row of every step.
What it computed for each accepted token is kept, so that a test can ask whether its cache was right all along.
"""

import numpy as np

from octavo.drafters.port import Proposal
from octavo.program.builder import Builder
from octavo.types import KVGroup
from octavo.weights.kinds import Tensor

WIDTH, HEADS, SIZE = 48, 3, 16
TAP = "1.x"


def program(vocab):
    b = Builder("draft")

    def weight(name, rows, columns):
        return b.weight(f"draft.{name}", (rows, columns), hf=f"draft.{name}", gguf=f"draft.{name}")

    group = b.group(KVGroup("full", "full"))
    x = b.add("draft.x", b.embed("draft.e", "token", weight("embed", vocab, WIDTH)), b.feed(TAP, WIDTH))
    angles = b.rope_angles("draft.cs", "position", inv_freq=tuple(0.5**i for i in range(SIZE // 2)))
    q = b.rope("draft.q", b.linear("draft.q0", x, weight("q", WIDTH, WIDTH)), angles, heads=HEADS, rotary=SIZE)
    k = b.rope("draft.k", b.linear("draft.k0", x, weight("k", SIZE, WIDTH)), angles, heads=1, rotary=SIZE)
    v = b.linear("draft.v", x, weight("v", SIZE, WIDTH))
    caches = {"cache_k": b.cache(group, "draft.kc", SIZE), "cache_v": b.cache(group, "draft.vc", SIZE)}
    kv = b.kv_write("draft.kv", k, v, caches["cache_k"], caches["cache_v"], kv_heads=1)
    a = b.attention("draft.a", q, kv, **caches, heads=HEADS, kv_heads=1, scale=SIZE**-0.5)
    y = b.add("draft.y", x, b.linear("draft.o", a, weight("o", WIDTH, WIDTH)))
    b.linear("draft.logits", b.take("draft.r", y, "logit_row"), weight("head", vocab, WIDTH))
    b.export("draft.logits")
    return b.build()


class ToyDrafter:
    """script(request, length): Proposal after `length` known tokens."""

    taps = (TAP,)
    hit_backoff = 0
    lookahead = 0

    def __init__(self, vocab, script, max_draft=6):
        self.programs = {"draft": program(vocab)}
        self.max_draft = self.tail = max_draft
        self.script = script
        self.seen = {}  # (request id, index) -> logits of the accepted token there
        self.forgotten = []

    def tensor(self, weight):
        rng = np.random.default_rng(sum(weight.name.encode()))
        values = (rng.standard_normal(weight.shape) / weight.shape[1] ** 0.5).astype(np.float32)
        return Tensor("bf16", weight.shape, (values.view(np.uint32) >> 16).astype(np.uint16))

    def serves(self, request):
        return True

    def follow(self, session, requests, tokens):
        return None

    def extend(self, session, rows):
        if not rows:
            return
        sources = [row.begin + t for row in rows for t in range(len(row.row.token_ids))]
        session.run("draft", [row.row for row in rows], sources)
        logits, first = session.view("draft.logits"), 0
        for row in rows:
            plan = row.row
            if row.result.token_ids:
                root = len(plan.token_ids) - plan.num_drafts - 1
                for depth, offset in enumerate((root, *row.result.accepted)):
                    place = (row.request.id, plan.start + root + depth)
                    self.seen[place] = logits[first + offset - plan.logits_from].copy()
            first += plan.num_logits

    def propose(self, session, rows):
        assert all(row.result.token_ids for row in rows)
        return [self.script(row.request, row.request.num_tokens + len(row.result.token_ids)) for row in rows]

    def forget(self, request_id):
        self.forgotten.append(request_id)


def nothing(request, length):
    return Proposal()
