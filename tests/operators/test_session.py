"""Native sessions on a tiny odd model: close to the reference, and bit-equal to themselves whatever the step."""

import numpy as np
import pytest
from odd_model import VOCABULARY, odd_model, prompt
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.errors import EngineError, ResourceError

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
LENGTH = 150  # two chunks of attention; positions far apart


@pytest.fixture(scope="module", params=native.available_isas())
def isa(request):
    return request.param


@pytest.fixture(scope="module")
def model():
    return odd_model()


@pytest.fixture(scope="module")
def whole(model, isa):
    """Logits of the whole prompt, computed in one step on one thread."""
    logits = stepper(model, isa).prompt(prompt(LENGTH))
    assert np.isfinite(logits).all() and logits.std() > 0.5
    return logits


def stepper(model, isa, *, threads=1, **options):
    return Stepper(NativeWith(isa, threads), *model, **options)


class NativeWith:
    """The native executor with a class and a thread count of the test's choosing."""

    def __init__(self, isa, threads):
        self.inner = executor_for("native")
        self.isa, self.threads = isa, threads
        self.lower = self.inner.lower

    def open(self, programs, weights, limits, *, threads):
        return self.inner.open(programs, weights, limits, threads=self.threads, isa=self.isa)


def test_logits_are_close_to_the_reference(model, whole):
    want = Stepper(executor_for("reference", "bfloat16"), *model).prompt(prompt(LENGTH))
    error = np.sqrt(np.mean((whole - want) ** 2)) / want.std()
    assert error < 0.03


@pytest.mark.parametrize("chunk", [1, 5, 16, 149])
def test_chunks_change_no_bit(model, isa, whole, chunk):
    assert np.array_equal(stepper(model, isa).prompt(prompt(LENGTH), chunk=chunk), whole)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(model, isa, whole, threads):
    many = stepper(model, isa, threads=threads)
    assert np.array_equal(many.prompt(prompt(LENGTH)), whole)
    assert np.array_equal(many.prompt(prompt(LENGTH), slot=1, chunk=3), whole)


def test_block_size_changes_no_bit(model, isa, whole):
    assert np.array_equal(stepper(model, isa, block_tokens=32).prompt(prompt(LENGTH), chunk=7), whole)


def test_batch_mates_change_no_bit(model, isa, whole):
    tokens = prompt(LENGTH)
    batch = stepper(model, isa, threads=2)
    got = []
    for at in range(0, LENGTH, 10):
        mates = [Run(1, at, tuple(prompt(10, seed=1 + at))), Run(2, at // 10, (at % VOCABULARY,))]
        runs = [mates[0], Run(0, at, tuple(tokens[at : at + 10])), mates[1]]
        got.append(batch.step(*runs)[10:20])
    assert np.array_equal(np.concatenate(got), whole)


def test_no_write_recomputes_a_row_from_the_cache(model, isa, whole):
    tokens = prompt(LENGTH)
    steps = stepper(model, isa)
    steps.prompt(tokens)
    again = steps.step(Run(0, LENGTH - 1, (tokens[-1],), no_write=(0,)))
    assert np.array_equal(again[0], whole[-1])


def test_empty_steps_run(model, isa, whole):
    steps = stepper(model, isa, threads=2)
    assert steps.step().shape == (0, VOCABULARY)
    tokens = prompt(LENGTH)
    assert steps.step(Run(0, 0, tuple(tokens[:-1]), logits_from=LENGTH - 1)).shape == (0, VOCABULARY)
    assert np.array_equal(steps.step(Run(0, LENGTH - 1, (tokens[-1],)))[0], whole[-1])


def test_a_wrong_header_is_refused_and_runs_nothing(model, isa):
    steps = stepper(model, isa)
    for run in (Run(0, 0, (VOCABULARY,)), Run(99, 0, (1,)), Run(0, 10**6, (1,))):
        with pytest.raises(EngineError, match="main: header"):
            steps.step(run)


def test_an_unknown_class_is_refused_by_name(model):
    with pytest.raises(ResourceError, match=r"avx9000.*portable"):
        stepper(model, "avx9000")
