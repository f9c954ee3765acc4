"""Native sessions on a tiny odd model: close to the reference, and bit-equal to themselves whatever the step."""

import os
from typing import NamedTuple

import numpy as np
import pytest
from forced import Forced
from odd_model import VOCABULARY, odd_model, prompt
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.errors import EngineError, ResourceError

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
LENGTH = 150  # two chunks of attention; positions far apart


class Kind(NamedTuple):
    isa: str
    kv: str


KINDS = [Kind(isa, kv) for isa in native.usable_isas() for kv in ("bf16", "i8")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model():
    return odd_model()


@pytest.fixture(scope="module")
def whole(model, kind):
    """Logits of the whole prompt, computed in one step on one thread."""
    logits = stepper(model, kind).prompt(prompt(LENGTH))
    assert np.isfinite(logits).all() and logits.std() > 0.5
    return logits


def stepper(model, kind, *, threads=1, **options):
    return Stepper(Forced(kind.isa, threads, kind.kv), *model, **options)


class Reference:
    def __init__(self, kv):
        self.inner, self.kv = executor_for("reference", "bfloat16"), kv
        self.open = self.inner.open

    def lower(self, program, kinds):
        return self.inner.lower(program, kinds, kv_dtype=self.kv)


def test_logits_are_close_to_the_reference(model, kind, whole):
    want = Stepper(Reference(kind.kv), *model).prompt(prompt(LENGTH))
    error = np.sqrt(np.mean((whole - want) ** 2)) / want.std()
    assert error < 0.03


@pytest.mark.parametrize("chunk", [1, 5, 16, 149])
def test_chunks_change_no_bit(model, kind, whole, chunk):
    assert np.array_equal(stepper(model, kind).prompt(prompt(LENGTH), chunk=chunk), whole)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_change_no_bit(model, kind, whole, threads):
    many = stepper(model, kind, threads=threads)
    assert np.array_equal(many.prompt(prompt(LENGTH)), whole)
    assert np.array_equal(many.prompt(prompt(LENGTH), slot=1, chunk=3), whole)


@pytest.mark.parametrize("window", [None, 700])
def test_a_long_context_shared_among_threads_has_the_bits_of_one(kind, window):
    """One request of three segments leaves fewer tasks than threads: its segments are shared out."""
    long_model = odd_model(**({"sliding_window": window, "architectures": ["MistralForCausalLM"]} if window else {}))
    tokens = prompt(1100)
    alone, shared = (stepper(long_model, kind, threads=threads, length=1120) for threads in (1, 3))
    want = alone.prompt(tokens, chunk=550)
    assert np.array_equal(shared.prompt(tokens, chunk=550), want)
    for at in (1023, 1024, 1099):
        again = shared.step(Run(0, at, (tokens[at],), no_write=(0,)))
        assert np.array_equal(again[0], want[at])


def test_block_size_changes_no_bit(model, kind, whole):
    assert np.array_equal(stepper(model, kind, block_tokens=32).prompt(prompt(LENGTH), chunk=7), whole)


def test_batch_mates_change_no_bit(model, kind, whole):
    tokens = prompt(LENGTH)
    batch = stepper(model, kind, threads=2)
    got = []
    for at in range(0, LENGTH, 10):
        mates = [Run(1, at, tuple(prompt(10, seed=1 + at))), Run(2, at // 10, (at % VOCABULARY,))]
        runs = [mates[0], Run(0, at, tuple(tokens[at : at + 10])), mates[1]]
        got.append(batch.step(*runs)[10:20])
    assert np.array_equal(np.concatenate(got), whole)


def test_no_write_recomputes_a_row_from_the_cache(model, kind, whole):
    tokens = prompt(LENGTH)
    steps = stepper(model, kind)
    steps.prompt(tokens)
    again = steps.step(Run(0, LENGTH - 1, (tokens[-1],), no_write=(0,)))
    assert np.array_equal(again[0], whole[-1])
    # Another token in its place leaves no trace in the cache.
    steps.prompt(tokens[:-1], slot=1)
    steps.step(Run(1, LENGTH - 2, ((tokens[-2] + 1) % VOCABULARY,), no_write=(0,)))
    assert np.array_equal(steps.step(Run(1, LENGTH - 1, (tokens[-1],)))[0], whole[-1])


@pytest.mark.parametrize("start", [17, 126, 511])
def test_a_tree_row_has_the_bits_of_plain_decoding(model, kind, start):
    """Drafts: 1 and 2 follow token 0, 3 follows 1, 4 follows 2, 5 follows 3. Then the path 1, 3, 5 is accepted."""
    tokens, drafts, parents = prompt(start + 1), (7, 9, 11, 13, 17), (-1, 0, 0, 1, 2, 3)
    steps = stepper(model, kind, threads=2, length=600)
    steps.prompt(tokens[:-1])
    steps.prompt(tokens[:-1], slot=1)
    steps.prompt(tokens[:-1], slot=2)
    tree = steps.step(Run(0, start, (tokens[-1], *drafts), parents=parents))
    long = [steps.step(Run(1, start + i, (t,)))[0] for i, t in enumerate((tokens[-1], 7, 11, 17, 23))]
    short = [steps.step(Run(2, start + i, (t,)))[0] for i, t in enumerate((tokens[-1], 9, 13))]
    for row, want in zip(tree, (long[0], long[1], short[1], long[2], short[2], long[3]), strict=True):
        assert np.array_equal(row, want)
    accepted = [(0, start + 3, start + 2), (0, start + 5, start + 3)]
    after = steps.step(Run(0, start + 4, (23,)), copies=accepted)
    assert np.array_equal(after[0], long[4])


def test_copies_read_everything_before_they_write(model, kind):
    tokens = prompt(40)
    steps = stepper(model, kind)
    want = steps.prompt(tokens)[-1]
    steps.prompt(tokens, slot=1)
    together = steps.step(Run(0, 39, (tokens[-1],)), copies=[(0, 3, 20), (0, 20, 5)])[0]
    steps.step(copies=[(1, 20, 5)])
    apart = steps.step(Run(1, 39, (tokens[-1],)), copies=[(1, 3, 20)])[0]
    assert not np.array_equal(together, want)
    assert np.array_equal(together, apart)


def test_a_profile_names_every_operator(model, kind):
    steps = stepper(model, kind, threads=2)
    session = steps.session
    session.profile("main", on=True)
    steps.prompt(prompt(40))
    names = [name for name, _ in session.profile("main", on=False)]
    assert names == [op.outs[0] for op in steps.program.ops]
    assert sum(seconds for _, seconds in session.profile("main", on=False)) > 0
    assert session.steps == 1 and 0 < session.barriers < len(steps.program.ops)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_norm_few_rows_each_for_itself_meet_less_often_and_give_the_same_bits(model, kind, whole, threads):
    steps, tokens = stepper(model, kind, threads=threads), prompt(LENGTH)
    steps.step(Run(0, 0, tuple(tokens[:-3]), logits_from=LENGTH - 3))

    def step(start, stop):
        before = steps.session.barriers
        logits = steps.step(Run(0, start, tuple(tokens[start:stop])))
        assert np.array_equal(logits, whole[start:stop])
        return steps.session.barriers - before

    together = step(LENGTH - 3, LENGTH)
    assert step(LENGTH - 3, LENGTH - 2) < together
    assert step(LENGTH - 2, LENGTH) < together


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_gets_threads_of_its_own(model, kind, whole):
    steps = stepper(model, kind, threads=2)
    steps.prompt(prompt(LENGTH))
    child = os.fork()
    if child == 0:
        again = steps.step(Run(0, LENGTH - 1, (prompt(LENGTH)[-1],)))
        os._exit(0 if np.array_equal(again[0], whole[-1]) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_empty_steps_run(model, kind, whole):
    steps = stepper(model, kind, threads=2)
    assert steps.step().shape == (0, VOCABULARY)
    tokens = prompt(LENGTH)
    assert steps.step(Run(0, 0, tuple(tokens[:-1]), logits_from=LENGTH - 1)).shape == (0, VOCABULARY)
    assert np.array_equal(steps.step(Run(0, LENGTH - 1, (tokens[-1],)))[0], whole[-1])


def test_a_wrong_header_is_refused_and_runs_nothing(model, kind):
    steps = stepper(model, kind)
    for run in (Run(0, 0, (VOCABULARY,)), Run(99, 0, (1,)), Run(0, 10**6, (1,))):
        with pytest.raises(EngineError, match="main: header"):
            steps.step(run)


def test_an_unknown_class_is_refused_by_name(model):
    with pytest.raises(ResourceError, match=r"avx9000.*portable"):
        stepper(model, Kind("avx9000", "bf16"))
