"""Test-only drafters: a one-layer program of its own in the target's session, and proposals right, wrong or a tree.

The program is real: it shares the block tables, has its own caches, reads the target's embedding and runs on every
step's rows. What it proposes is steered, so that each kind of verification surely occurs.
"""

import numpy as np

from octavo.drafters.port import Proposal
from octavo.program.builder import Builder
from octavo.types import KVGroup
from octavo.weights.kinds import Tensor

WIDTH, HEADS, SIZE, DRAFT_VOCAB = 32, 2, 16, 64


def one_layer(hidden, vocab):
    """embed -> linear -> norm -> attention on its own caches -> linear over a reduced draft vocabulary."""
    b = Builder("drafter")
    group = b.group(KVGroup("full", "full"))
    embedding = b.weight("embed", (vocab, hidden), hf="model.embed_tokens.weight", gguf="token_embd.weight")
    own = {"hf": "", "gguf": ""}
    down = b.weight("draft.down", (WIDTH, hidden), **own)
    norm = b.weight("draft.norm", (WIDTH,), **own)
    names = [b.weight(f"draft.{name}", (HEADS * SIZE, WIDTH), **own) for name in "qkv"]
    head = b.weight("draft.head", (DRAFT_VOCAB, HEADS * SIZE), **own)
    ck = b.cache(group, "draft.cache_k", HEADS * SIZE)
    cv = b.cache(group, "draft.cache_v", HEADS * SIZE)
    x = b.linear("d.x", b.embed("d.e", "token", embedding), down)
    h = b.norm("d.h", x, norm, eps=1e-5, dtype="act")
    q, k, v = (b.linear(f"d.{name}", h, weight) for name, weight in zip("qkv", names, strict=True))
    kv = b.kv_write("d.kv", k, v, ck, cv, kv_heads=HEADS)
    a = b.attention("d.a", q, kv, cache_k=ck, cache_v=cv, heads=HEADS, kv_heads=HEADS, scale=SIZE**-0.5)
    b.linear("draft.logits", b.take("d.last", a, "logit_row"), head)
    b.export("draft.logits")
    return b.build()


class SteeredDrafter:
    """mode: right (the true continuation), wrong (the program's own guess, off by one), tree (both, branching)."""

    taps = ()
    hit_backoff = 0
    lookahead = 0

    def __init__(self, mode, truth, hidden, vocab, depth=3):
        self.mode, self.truth, self.vocab, self.depth = mode, truth, vocab, depth
        self.programs = {"drafter": one_layer(hidden, vocab)}
        self.max_draft = self.tail = 3 * depth
        self.runs = 0
        self.forgotten = set()

    def tensor(self, weight):
        if not weight.name.startswith("draft."):
            return None
        rng = np.random.default_rng(len(weight.name))
        values = rng.standard_normal(weight.shape).astype(np.float32)
        if len(weight.shape) == 1:
            return Tensor("f32", weight.shape, values)
        return Tensor("bf16", weight.shape, (values.view(np.uint32) >> 16).astype(np.uint16))

    def serves(self, request):
        return True

    def follow(self, session, requests, tokens):
        return None

    def extend(self, session, rows):
        if rows:
            session.run("drafter", [row.row for row in rows])
            self.logits = np.array(session.view("draft.logits"))
            assert np.isfinite(self.logits).all()
            self.runs += 1

    def propose(self, session, rows):
        return [self._proposal(row.request, row.result.token_ids) for row in rows]

    def _proposal(self, request, sampled):
        done = len(request.output_ids) + len(sampled)
        right = tuple(self.truth[request.id][done : done + self.depth])
        guess = int(self.logits[0].argmax())
        wrong = tuple((token + 1 + guess) % self.vocab if guess else (token + 1) % self.vocab for token in right)
        if not right:
            return Proposal()
        if self.mode == "right":
            return Proposal(right)
        if self.mode == "wrong":
            return Proposal((right[0], *wrong[1:]) if done % 2 else wrong)
        # a wrong branch first, so that the right one stands at shifted places; a wrong leaf under the first right token
        tokens, parents = [], []
        for i, token in enumerate(wrong):
            tokens.append(token)
            parents.append(i - 1)
        first = len(tokens)
        for i, token in enumerate(right):
            tokens.append(token)
            parents.append(-1 if i == 0 else first + i - 1)
        if len(right) > 1:
            tokens.append(wrong[1])
            parents.append(first)
        return Proposal(tuple(tokens), tuple(parents))

    def forget(self, request_id):
        self.forgotten.add(request_id)
