"""Feeds: rows of exports handed from program to program and from a program's run to its next, both executors alike."""

import numpy as np
import pytest
from forced import Forced
from stepping import Run, header

from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.errors import ConfigError, EngineError
from octavo.program.builder import Builder
from octavo.program.cost import op_cost
from octavo.program.header import offsets
from octavo.types import StepShape
from octavo.weights.kinds import Tensor

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
WIDTH, TABLE, MOST = 45, 9, 64
NAN = TABLE - 1  # the token whose row is not a number
ROWS = np.random.default_rng(0).standard_normal((TABLE, WIDTH)).astype(np.float32)
ROWS[NAN] = np.nan
EXECUTORS = [*native.usable_isas(), "reference"]


def embedded(name):
    b = Builder(name)
    return b, b.embed(f"{name}.e", "token", b.weight("table", (TABLE, WIDTH), hf="table", gguf="table"))


def target():
    b, x = embedded("model")
    b.add("hidden", x, x)
    b.export("hidden")
    return b.build()


def follower(**fed):
    """state = what is fed + an embedding; values live before and behind it, and more of it is exported."""
    b, e = embedded("draft")
    early = b.add("early", e, e)
    x = b.feed("hidden", **{"width": WIDTH, "then": (("state", "draft"),), **fed})
    b.export(b.add("state", x, e))
    b.export(b.concat("both", b.add("late", "state", early), early))
    return b.build()


def opened(name, programs, threads=2):
    executor = executor_for("reference", "bfloat16") if name == "reference" else Forced(name, threads)
    lowered = {key: executor.lower(program, {"table": "f32"}) for key, program in programs.items()}
    tensor = Tensor("f32", ROWS.shape, ROWS)
    return executor.open(lowered, lambda: iter([("table", tensor)]), Limits(MOST, MOST, 2, 64, 5, 16), threads=threads)


def words(tokens, sources=None):
    out = header([Run(0, 0, tuple(tokens))])
    begin, end = offsets(len(tokens), len(tokens), 1, 0, 0, 0)["source_row"]
    out[begin:end] = range(len(tokens)) if sources is None else sources
    return out


@pytest.mark.parametrize("name", EXECUTORS)
def test_rows_come_from_another_program_and_from_the_run_before(name):
    """Runs of all sizes, fed by rows of both as they were before; what a step leaves behind is not a number."""
    session = opened(name, {"target": target(), "draft": follower()})
    rng = np.random.default_rng(1)
    state = np.zeros((0, WIDTH), np.float32)
    for size, main in ((1, 20), (MOST, 20), (3, 1), (MOST, MOST), (17, 2), (2, 5), (1, 5), (40, 7)):
        tokens = rng.integers(0, NAN, main)
        session.run("target", words(tokens))
        hidden = ROWS[tokens] + ROWS[tokens]
        for again in range(3):
            known = np.concatenate((hidden, state))
            sources = rng.integers(0, len(known), size)
            drafted = rng.integers(0, NAN, size)
            session.run("draft", words(drafted, sources))
            state = known[sources] + ROWS[drafted]
            assert np.array_equal(session.view("state"), state)
            early = ROWS[drafted] + ROWS[drafted]
            assert np.array_equal(session.view("both"), np.concatenate((state + early, early), axis=1))
            assert np.array_equal(session.view("hidden"), hidden), again
            if again == 1:  # every value of the arena, and the state itself
                session.run("draft", words([NAN] * MOST, [0] * MOST))
                session.run("draft", words(drafted, sources % main))
                state = hidden[sources % main] + ROWS[drafted]
                assert np.array_equal(session.view("state"), state)


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_empty_run_is_fed_nothing(name):
    session = opened(name, {"target": target(), "draft": follower()})
    session.run("draft", words([]))
    assert session.view("state").shape == (0, WIDTH)


@pytest.mark.parametrize("name", EXECUTORS)
def test_rows_that_are_not_there_are_refused(name):
    session = opened(name, {"target": target(), "draft": follower()})
    with pytest.raises(EngineError, match="draft: header: source_row 0 is no row of target/hidden, which has not run"):
        session.run("draft", words([1]))
    session.run("target", words([1, 2, 3]))
    session.run("draft", words([1, 2], [0, 2]))
    for wrong in (-1, 5):
        with pytest.raises(EngineError, match=f"source_row {wrong} is no row of target/hidden$"):
            session.run("draft", words([1], [wrong]))
    session.run("draft", words([1], [4]))  # what was refused has changed nothing: the second row of the run before
    assert np.array_equal(session.view("state"), [ROWS[3] * 2 + ROWS[2] + ROWS[1]])


@pytest.mark.parametrize("name", [EXECUTORS[0], "reference"])
@pytest.mark.parametrize(
    ("fed", "said"),
    [
        ({"of": "giver"}, "reads hidden of a program giver, which the session does not have"),
        ({"name": "x"}, "reads x, which target does not export"),
        ({"width": 44, "then": ()}, "reads rows of 44 where hidden of target has 45"),
        ({"dtype": "i32", "then": ()}, "reads hidden of target, which is no list of rows of int32"),
    ],
)
def test_feeds_are_checked_at_open(name, fed, said):
    b, e = embedded("draft")
    b.export(b.concat("state", b.feed(**{"name": "hidden", "width": WIDTH, **fed}), e))
    with pytest.raises(ConfigError, match=f"^draft: .*{said}$"):
        opened(name, {"target": target(), "draft": b.build()})


def test_a_feed_costs_the_rows_it_moves():
    program = follower()
    [op] = [op for op in program.ops if op.kind == "feed"]
    assert op_cost(program, op, StepShape.prefill(7)).bytes == 7 * (2 * 4 * WIDTH + 4)
