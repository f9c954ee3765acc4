"""Runs requests through the whole engine step by step, in this thread, and keeps every logits row that was sampled.

A logits row is keyed by the tokens before it. The claim of the suite: a run under any condition meets only rows whose
bytes equal the row of the same key in the plain run, and gives the same ids.
"""

import hashlib
import random
from dataclasses import dataclass, field

import numpy as np

from octavo.config import EngineConfig
from octavo.engine.loop import EngineLoop
from octavo.engine.parts import open_engine
from octavo.engine.wire import Abort, Submit
from octavo.request import Request, SamplingParams

SLOTS = 40


@dataclass
class Run:
    """What came of a set of requests."""

    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    stats: dict = field(default_factory=dict)


class House:
    """One opened engine. `run` may be called again: the prefix cache stays warm."""

    def __init__(self, model, *, drafter=None, poison=False, **options):
        defaults = {"max_num_seqs": SLOTS, "threads": 2, "num_blocks": 600, "max_model_len": 1024}
        self.config = EngineConfig(model=model, **{**defaults, **options})
        self.parts = open_engine(self.config, drafter, lambda done, total: None)
        self.deltas = []
        self.loop = EngineLoop(
            self.parts.scheduler,
            self.parts.runner,
            self.parts.stats,
            lambda update: self.deltas.extend(update.deltas),
            depth=self.config.plans_outstanding,
        )
        self.rows = {}
        self._record()
        if poison:
            self.poison()

    def poison(self):
        """Every block is NaN until it is written: 0xFFFF in bf16, 0xFFFFFFFF in float32."""
        self.parts.runner._session.cache_bytes()[:] = 0xFF

    def _record(self):
        """Row by row or a cohort at once: each row is looked at before it is sampled."""
        sampler = self.parts.runner._sampler
        plain, cohort = sampler.sample, sampler.cohort

        def sample(logits, rows):
            for row in rows:
                self._keep(row.request, row.logits_row, row.extra_ids)
            return plain(logits, rows)

        sampler.sample = sample
        sampler.cohort = lambda requests: (found := cohort(requests)) and RecordedCohort(self, requests, found)

    def _keep(self, request, row, extra_ids=()):
        values = self.parts.runner.view("logits")[row]
        assert np.isfinite(values).all() and values.min() < values.max()
        data, tokens = values.tobytes(), (*request.prompt_ids, *request.output_ids, *extra_ids)
        assert self.rows.setdefault(key(tokens), data) == data, "one prefix gave two rows of logits"

    def run(self, requests, *, each_turn=None, every=0):
        """each_turn(house, turn): called before every turn, to abort and the like. every: two requests come at once,
        and one more after so many turns each; 0: all come at once."""
        self.rows.clear()
        self.deltas.clear()
        before = self.parts.scheduler.stats.as_dict()
        first = 2 if every else len(requests)
        for request in requests[:first]:
            self.loop.post(Submit(request))
        turn, later = 0, list(requests[first:])
        self.loop.turn()
        while self.parts.scheduler.has_work or later:
            turn += 1
            if later and (turn % every == 0 or not self.parts.scheduler.has_work):
                self.loop.post(Submit(later.pop(0)))
            if each_turn is not None:
                each_turn(self, turn)
            self.loop.turn()
        after = self.parts.scheduler.stats.as_dict()
        stats = {name: after[name] - before[name] for name, value in after.items() if isinstance(value, int)}
        run = Run(rows=dict(self.rows), stats=stats)
        for delta in self.deltas:
            run.outputs[delta.request_id] = run.outputs.get(delta.request_id, ()) + delta.token_ids
            if delta.finish_reason:
                assert delta.request_id not in run.reasons
                run.reasons[delta.request_id] = delta.finish_reason
        assert set(run.reasons) == {request.id for request in requests}
        self.idle()
        return run

    def idle(self):
        """Nothing runs: every block is free or cached, by id."""
        for pool in self.parts.scheduler.ledger.pools:
            assert len(pool.free) + len(pool.idle) == pool.usable
            assert not any(pool.refs)

    def abort(self, request_id):
        self.loop.post(Abort(request_id))

    def close(self):
        self.parts.runner.close()


class RecordedCohort:
    def __init__(self, house, requests, cohort):
        self.house, self.requests, self.cohort = house, requests, cohort

    def sample(self, logits, header):
        for row, request in enumerate(self.requests):
            self.house._keep(request, row)
        return self.cohort.sample(logits, header)


def key(tokens):
    return hashlib.sha256(np.asarray(tokens, np.int32).tobytes()).digest()


def request(name, prompt, *, tokens=12, temperature=0.0, seed=0, **params):
    chosen = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True, top_p=0.95, **params)
    return Request(name, tuple(prompt), chosen, seed=seed)


def prompts(vocab, lengths, seed=1):
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab) for _ in range(length)] for length in lengths]


def subjects(vocab, tokens=12):
    """Lengths around block edges and attention chunks; half greedy, half sampled."""
    lengths = (1, 15, 16, 17, 32, 47, 64, 127, 129, 150)
    return [
        request(f"s{i}", prompt, tokens=tokens, temperature=0.9 * (i % 2), seed=1000 + i)
        for i, prompt in enumerate(prompts(vocab, lengths))
    ]


def company(vocab, count, seed, tokens=10):
    """Other people's requests, of every length and kind."""
    rng = random.Random(seed)
    lengths = [rng.randrange(1, 90) for _ in range(count)]
    return [
        request(f"other{seed}-{i}", prompt, tokens=rng.randrange(1, tokens), temperature=rng.choice((0.0, 1.3)), seed=i)
        for i, prompt in enumerate(prompts(vocab, lengths, seed))
    ]


def check(run, plain, *, ids=None):
    """Same ids, and every logits row that both runs met is the same to the bit."""
    for name in ids if ids is not None else plain.outputs:
        assert run.outputs[name] == plain.outputs[name], f"{name}: other tokens"
    common = run.rows.keys() & plain.rows.keys()
    assert len(common) >= sum(len(plain.outputs[name]) for name in (ids if ids is not None else plain.outputs))
    wrong = [name for name in common if run.rows[name] != plain.rows[name]]
    assert not wrong, f"{len(wrong)} of {len(common)} logits rows differ in bits"
