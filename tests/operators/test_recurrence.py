"""Operators of recurrent state: native kernels against their twins, and one state however a request is cut, drafted,
replayed, kept and started again."""

import numpy as np
import pytest
from forced import Forced
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.errors import ConfigError, EngineError
from octavo.program import recurrence
from octavo.program.builder import Builder
from octavo.program.cost import op_cost
from octavo.program.recurrence import DeltaShape, native_states, with_tail
from octavo.types import StepShape
from octavo.weights.kinds import Tensor

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")

VOCABULARY, TAIL = 61, 5
TOKENS = tuple(np.random.default_rng(5).integers(0, VOCABULARY, 70).tolist())
SHAPES = {  # and taps: widths of no vector and of no tile, one head, three value heads a key head, real sizes
    "odd": (DeltaShape(key_heads=2, key_dim=25, heads=4, value_dim=20), 4),
    "one": (DeltaShape(key_heads=1, key_dim=7, heads=1, value_dim=5), 2),
    "many": (DeltaShape(key_heads=2, key_dim=16, heads=6, value_dim=48), 3),
    "real": (DeltaShape(key_heads=1, key_dim=128, heads=2, value_dim=128), 4),
}


def noise(seed, *shape, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def program(name):
    """(plain program, tensors): embeddings of tokens through convolution, gates and delta rule; all are exported."""
    shape, taps = SHAPES[name]
    b, heads = Builder("bench"), shape.heads
    arrays = {
        "x": noise(0, VOCABULARY, shape.channels),
        "ba": noise(1, VOCABULARY, 2 * heads, scale=3.0),
        "conv": noise(2, shape.channels, 1, taps, scale=0.7),
        "a_log": noise(3, heads) - 4,
        "dt_bias": noise(4, heads),
    }
    w = {n: b.weight(n, a.shape, hf=n, gguf=n, plain=len(a.shape) == 3) for n, a in arrays.items()}
    x, ba = b.embed("xs", "token", w["x"]), b.embed("bas", "token", w["ba"])
    c = recurrence.conv_state(b, "c", x, w["conv"])
    gates = recurrence.delta_gates(b, "decay", "beta", ba, w["a_log"], w["dt_bias"])
    recurrence.delta_rule(b, "logits", c, gates, shape)
    for name in ("c", *gates, "logits"):
        b.export(name)
    tensors = {n: Tensor("f32", a.shape, np.ascontiguousarray(a)) for n, a in arrays.items()}
    return with_tail(b.build(), TAIL), tensors


def stepper(executor, name="odd"):
    return Stepper(executor, *program(name), snapshots=3)


def same(a, b):
    return np.array_equal(a, b) or np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.fixture(params=[*native.usable_isas(), "reference"])
def each(request):
    """A function from the name of a shape to a stepper."""
    if request.param == "reference":
        return lambda name="odd": stepper(executor_for("reference", "bfloat16"), name)
    return lambda name="odd": stepper(Forced(request.param, 2), name)


@pytest.fixture(params=native.usable_isas())
def isa(request):
    return request.param


@pytest.mark.parametrize("name", SHAPES)
def test_kernels_are_their_twins(isa, name):
    got, want = stepper(Forced(isa), name), stepper(executor_for("reference", "bfloat16"), name)
    for run in (Run(0, 0, TOKENS[:40]), Run(1, 0, TOKENS[3:9]), Run(0, 40, TOKENS[40:41])):
        got.step(run), want.step(run)
        for value in ("decay", "beta", "c", "logits"):
            a, b = got.session.view(value), want.session.view(value)
            assert np.isfinite(b).all() and np.abs(b).max() > 0.01
            assert np.abs(a - b).max() <= 2e-6 * max(1, np.abs(b).max()), value


@pytest.mark.parametrize("name", SHAPES)
def test_bits_do_not_feel_cuts_threads_or_mates(isa, name):
    want = stepper(Forced(isa), name).prompt(TOKENS)
    for threads in (1, 2, 3):
        other = stepper(Forced(isa, threads), name)
        for slot, chunk in enumerate((1, 7, 16, 33)):
            assert np.array_equal(other.prompt(TOKENS, slot=slot, chunk=chunk), want)
        mates = [Run(slot, 0, TOKENS[slot : slot + 20]) for slot in range(3)]
        assert np.array_equal(other.step(Run(3, 0, TOKENS), *mates)[: len(TOKENS)], want)


def test_a_state_forgets_and_remembers(each):
    """Answers depend on tokens far behind, and not on who had the slot before."""
    one = each("real")
    want = one.prompt(TOKENS)
    assert not same(one.prompt((7, *TOKENS[1:]))[-1:], want[-1:])
    assert same(one.prompt(TOKENS), want)


@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_snapshots_hold_the_state_of_their_token(each, chunk):
    one = each()
    want = one.prompt(TOKENS)
    for at in range(0, 64, chunk):
        taken = tuple((t - at, s) for t, s in ((16, 1), (35, 2)) if at < t <= at + chunk)
        one.step(Run(1, at, TOKENS[at : at + chunk], snapshots=taken))
    assert same(one.step(Run(2, 16, TOKENS[16:40], restore=1)), want[16:40])
    again = one.step(Run(0, 35, TOKENS[35:], restore=2, snapshots=((9, 3),)), Run(3, 16, TOKENS[16:], restore=1))
    assert same(again, np.concatenate((want[35:], want[16:])))
    assert same(one.step(Run(1, 44, TOKENS[44:], restore=3)), want[44:])


@pytest.mark.parametrize("accepted", range(4))
def test_drafts_are_as_if_decoded_and_leave_no_trace(each, accepted):
    one = each()
    want = one.prompt(TOKENS)
    one.step(Run(1, 0, TOKENS[:20]))
    wrong = [*TOKENS[22 : 22 + accepted], *[(t + 1) % VOCABULARY for t in TOKENS[22 + accepted : 25]]]
    got = one.step(Run(1, 20, (*TOKENS[20:22], *wrong), drafts=3))
    assert same(got[: 2 + accepted], want[20 : 22 + accepted])
    if accepted < 3:
        assert not same(got[2 + accepted :], want[22 + accepted : 25])
    at = 22 + accepted
    got = one.step(Run(1, at, TOKENS[at : at + 4], drafts=3, replay=accepted))
    assert same(got, want[at : at + 4])
    got = one.step(Run(1, at + 3, TOKENS[at + 3 :], replay=2))
    assert same(got, want[at + 3 :])


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_snapshot_may_lie_among_replayed_drafts(each, after):
    one = each()
    want = one.prompt(TOKENS)
    one.step(Run(1, 0, TOKENS[:23], drafts=3))
    one.step(Run(1, 22, TOKENS[22:24], replay=2, snapshots=((after, 2),)))
    assert same(one.step(Run(2, 20 + after, TOKENS[20 + after :], restore=2)), want[20 + after :])


def test_drafts_of_a_tree_walk_their_own_paths(each):
    """Offsets: 1 known token, then right, wrong, right after right, wrong after wrong, right after that."""
    one = each()
    want = one.prompt(TOKENS)
    one.step(Run(1, 0, TOKENS[:20]))
    right, bad = TOKENS[21:24], [(t + 1) % VOCABULARY for t in TOKENS[21:24]]
    tokens = (TOKENS[20], bad[0], right[0], bad[1], right[1], right[2])
    got = one.step(Run(1, 20, tokens, parents=(-1, 0, 0, 1, 2, 4), drafts=5))
    assert same(got[[0, 2, 4, 5]], want[20:24])
    side = [*TOKENS[:21], bad[0], bad[1]]
    assert same(got[[1, 3]], one.prompt(side, slot=2)[21:])
    copies = [(1, 22, 21), (1, 24, 22), (1, 25, 23)]
    assert same(one.step(Run(1, 24, TOKENS[24:], replay=3), copies=copies), want[24:])


def test_what_a_header_asks_must_be_there(isa):
    one = stepper(Forced(isa))
    one.step(Run(0, 0, TOKENS[:10], drafts=2))
    for run, what in {
        Run(0, 8, TOKENS[8:18], drafts=TAIL + 1): "more drafts",
        Run(0, 8, TOKENS[8:9], replay=TAIL + 1): "replay",
        Run(0, 9, TOKENS[8:9], replay=2): "tail is another's",
        Run(0, 8, TOKENS[8:9], restore=4): "no snapshot",
        Run(0, 8, TOKENS[8:10], snapshots=((3, 1),)): "snapshot out of range",
        Run(0, 8, TOKENS[8:10], snapshots=((1, 4),)): "in use",
        Run(0, 8, TOKENS[8:10], snapshots=((1, 1), (2, 1))): "in use",
        Run(0, 8, TOKENS[8:10], snapshots=((2, 1), (1, 2))): "out of order",
        Run(0, 8, TOKENS[8:10], restore=1, snapshots=((1, 1),)): "in use",
    }.items():
        with pytest.raises(EngineError, match=what):
            one.step(run)
    with pytest.raises(EngineError, match="outside of the tail"):
        one.step(Run(0, 8, TOKENS[8:9]), copies=[(0, 7, 8)])


def test_wrong_shapes_are_refused_by_name():
    b = Builder("bad")
    table, kernel = (b.weight(n, s, hf=n, gguf=n, plain=n == "k") for n, s in (("t", (9, 12)), ("k", (8, 1, 4))))
    x = b.embed("x", "token", table)
    with pytest.raises(ConfigError, match=r"c: k .* of 12 channels"):
        recurrence.conv_state(b, "c", x, kernel)
    vector = b.weight("v", (4,), hf="v", gguf="v")
    with pytest.raises(ConfigError, match="of 4 heads"):
        recurrence.delta_gates(b, "g", "beta", x, vector, vector)
    with pytest.raises(ConfigError, match="is not q, k and v"):
        recurrence.delta_rule(b, "o", x, ("g", "beta"), DeltaShape(key_heads=1, key_dim=2, heads=2, value_dim=5))


def test_costs_and_sizes_are_those_of_the_state():
    plain, _ = program("odd")
    ops, shape = {op.kind: op for op in plain.ops}, StepShape.decode(3, 10)
    state, conv, channels = 4 * 4 * 25 * 20, 4 * 3 * 180, 180
    assert op_cost(plain, ops["delta_rule"], shape).cache_bytes == 2 * 3 * state
    assert op_cost(plain, ops["delta_rule"], shape).flops == 8 * 3 * 4 * 25 * 20
    assert op_cost(plain, ops["conv_state"], shape).cache_bytes == 2 * 3 * conv
    (group,) = plain.groups
    assert group.bytes_per_sequence == state + conv and group.bytes_per_token == 0
    assert native_states(plain)["logits_state"] == (4 * 25 * 32, 2 * 25 + 4 * 20 + 8)
    sizes = executor_for("native").state_bytes({"a": plain})
    assert sizes.snapshot == 4 * (4 * 25 * 32 + 3 * channels)
    assert sizes.slot == sizes.snapshot + 2 * TAIL * 4 * (channels + 138)
    assert executor_for("reference").state_bytes({"a": plain}).snapshot == state + conv
