"""Operators of rows that few families use, each against its reference twin: norms of other rules, activations, caps,
pooling, embeddings by position; and attention with a cap or in both directions."""

import numpy as np
import pytest
from forced import Forced
from stepping import Run, Stepper
from test_operators import ALL, ROWS, Bench, U, assert_attention, attention_bench, isa, rows, tokens

from octavo.backends import executor_for
from octavo.errors import ConfigError, EngineError
from octavo.program.builder import Builder
from octavo.weights.kinds import Tensor

__all__ = ["isa"]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("width", "heads"), [(45, 0), (17, 0), (576, 0), (72, 3)])
def test_layer_norm(isa, width, heads, biased):
    bench = Bench()
    each = width // max(heads, 1)
    weight = bench.weight("w", 1 + 0.3 * rows(each)[0])
    bias = bench.weight("b", rows(each, seed=1)[0]) if biased else None
    data = rows(width, scale=3.0, seed=2) + 5.0
    data[3] *= 1e-4  # small enough for eps to matter
    bench.builder.norm("logits", bench.input("x", data), weight, eps=1e-5, rule="layer", heads=heads, bias=bias)
    got, want = bench.both(isa, ALL)
    # The mean, some units in the last place of the largest, is subtracted from everything.
    assert np.abs(got - want).max() <= 64 * U * np.abs(data / data.std()).max()


def test_l2_norm_has_no_weight_and_keeps_zeros(isa):
    bench = Bench()
    data = rows(45, scale=7.0)
    data[5] = 0.0
    bench.builder.norm("logits", bench.input("x", data), None, eps=1e-24, rule="l2")
    got, want = bench.both(isa, ALL)
    assert np.abs(got - want).max() <= 16 * U
    assert np.allclose(np.linalg.norm(np.delete(got, 5, 0), axis=1), 1.0, atol=1e-6) and not got[5].any()


@pytest.mark.parametrize("act", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("width", [1, 45, 96])
def test_act(isa, act, width):
    bench = Bench()
    data = rows(width, scale=4.0)
    data.reshape(-1)[:8] = [-90, 90, -20, 20, 0, -0.0, 1e-6, -1e-6]
    bench.builder.export(bench.builder.act("logits", bench.input("x", data), act=act))
    got, want = bench.both(isa, ALL)
    assert (np.abs(got - want) <= 64 * U * (1 + np.abs(data))).all()


@pytest.mark.parametrize("kind", ["bf16", "i8"])
def test_act_feeds_a_linear_in_its_own_form(isa, kind):
    """bf16, and over i8 weights integers; read back through an identity."""
    bench = Bench()
    f = bench.builder.act("f", bench.input("x", rows(64)), act="gelu")
    eye = bench.weight("one", np.eye(64, dtype=np.float32), "bf16")
    if kind == "i8":
        bench.tensors["one"] = identity_i8(64)
    bench.builder.linear("logits", f, eye)
    bench.builder.export("logits")
    program = bench.builder.build()
    got = Stepper(Forced(isa, 2), program, bench.tensors).step(*ALL)
    want = Stepper(executor_for("reference"), program, bench.tensors).step(*ALL)
    assert np.abs(got - want).max() <= 2.0**-8 * np.abs(want).max()


def identity_i8(width):
    scale = np.full((width, width // 32), np.float16(1 / 127).view(np.uint16), np.uint16)
    return Tensor("i8", (width, width), 127 * np.eye(width, dtype=np.int8), group=32, scale=scale)


@pytest.mark.parametrize("width", [5, 45, 256])
def test_cap(isa, width):
    bench = Bench()
    data = rows(width, scale=40.0)
    data.reshape(-1)[:5] = [-1e30, 1e30, 0.0, 1e-3, -1e-3]
    bench.builder.cap("logits", bench.input("x", data), cap=30.0)
    got, want = bench.both(isa, ALL)
    assert np.abs(got - want).max() <= 30 * 8 * U and np.abs(got).max() <= 30.0


@pytest.mark.parametrize("mode", ["last", "mean", "cls"])
@pytest.mark.parametrize("width", [3, 45, 64])
def test_pool(isa, mode, width):
    bench = Bench()
    bench.builder.pool("logits", bench.input("x", rows(width)), mode=mode)
    runs = [Run(0, 0, tuple(range(20))), Run(1, 0, (30,)), Run(2, 0, (5, 6, 7))]
    got, want = bench.both(isa, runs, threads=3)
    assert got.shape == (3, width) and np.abs(got - want).max() <= (0 if mode != "mean" else 20 * U * 5)


def test_embeddings_by_position_with_a_vector_added(isa):
    bench = Bench()
    table, vector = bench.weight("p", rows(45)), bench.weight("v", rows(45, seed=1)[0])
    bench.builder.embed("logits", "position", table, addend=vector)
    got, want = bench.both(isa, [Run(0, 9, (1, 2, 3))])
    assert np.array_equal(got, want)
    with pytest.raises((EngineError, RuntimeError), match="position 37 is not in its table"):
        bench2 = Bench()
        bench2.builder.embed("logits", "position", bench2.weight("p", rows(45)))
        bench2.both(isa, [Run(0, ROWS - 2, (1, 2, 3))])


@pytest.mark.parametrize("cap", [0.5, 5.0])
@pytest.mark.parametrize("window", [0, 130])
def test_attention_with_a_cap(isa, cap, window):
    bench = attention_bench(24, 6, 3, window, cap=cap)
    prompt = [Run(0, 0, tokens(200))]
    assert_attention(*bench.both(isa, prompt, [Run(0, 200, tokens(3, 2))], length=208))


def test_a_cap_shows(isa):
    def last(cap):
        return attention_bench(24, 6, 3, cap=cap).both(isa, [Run(0, 0, tokens(50))])[0]

    assert np.abs(last(0.0) - last(0.5)).max() > 0.1


@pytest.mark.parametrize("count", [1, 17, 200, 530])
@pytest.mark.parametrize(("d", "heads", "kv_heads"), [(24, 6, 3), (32, 4, 4)])
def test_attention_in_both_directions(isa, count, d, heads, kv_heads):
    """Beside other requests, whose keys it must not see."""
    bench = attention_bench(d, heads, kv_heads, causal=False)
    runs = [Run(0, 0, tokens(count)), Run(1, 0, tokens(9, 1))]
    assert_attention(*bench.both(isa, runs, length=544))


def test_both_directions_do_not_depend_on_mates_or_threads(isa):
    def rows_of(threads, *runs):
        bench = attention_bench(32, 4, 4, causal=False)
        bench.builder.export("logits")
        return Stepper(Forced(isa, threads), bench.builder.build(), bench.tensors, length=544).step(*runs)

    alone = rows_of(1, Run(0, 0, tokens(530)))
    assert np.array_equal(alone, rows_of(3, Run(0, 0, tokens(530))))
    assert np.array_equal(alone, rows_of(2, Run(1, 0, tokens(40, 1)), Run(0, 0, tokens(530)))[40:])


def test_wrong_operators_are_refused():
    b = Builder("wrong")
    x = b.embed("x", "token", b.weight("t", (4, 8), hf="t", gguf="t"))
    with pytest.raises(ConfigError, match="rule l2"):
        b.norm("n", x, b.weight("w", (8,), hf="w", gguf="w"), eps=1.0, rule="l2")
    with pytest.raises(ConfigError, match="rule rms"):
        b.norm("n", x, "w", eps=1.0, bias="w")
    with pytest.raises(ConfigError, match="gated activation gelu"):
        b.glu("g", x, x, act="gelu")
