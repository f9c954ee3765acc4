"""Each native operator against its reference twin. Inputs are embedding rows in f32, so a test chooses every bit.

A program of one operator exports its result as "logits"; both executors run the same lowered program. Bounds: u is
half a unit in the last place of float32, and 2^-9 that of bfloat16.
"""

import numpy as np
import pytest
from forced import Forced
from odd_model import from_bf16, to_bf16
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.program.builder import Builder
from octavo.program.lower import lower
from octavo.types import KVGroup
from octavo.weights.kinds import Tensor

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
U = 2.0**-24
ROWS = 37


@pytest.fixture(params=native.usable_isas())
def isa(request):
    return request.param


class Bench:
    """Builds one program; rows of the weight "x", "y", ... are the inputs of the operator under test."""

    def __init__(self) -> None:
        self.builder = Builder("bench")
        self.tensors: dict[str, Tensor] = {}

    def weight(self, name: str, data: np.ndarray, kind: str = "f32") -> str:
        held = np.ascontiguousarray(data, np.float32) if kind == "f32" else to_bf16(data)
        self.tensors[name] = Tensor(kind, data.shape, held)
        return self.builder.weight(name, data.shape, hf=name, gguf=name)

    def input(self, name: str, data: np.ndarray) -> str:
        return self.builder.embed(name, "token", self.weight(f"{name}.table", data))

    def both(self, isa: str, *steps: list[Run], threads: int = 2, **options) -> tuple[np.ndarray, np.ndarray]:
        """(native, reference) of the last step, after exporting "logits"."""
        self.builder.export("logits")
        program = self.builder.build()
        self.kinds = {op.kind for op in lower(program, {n: t.kind for n, t in self.tensors.items()}).ops}
        got = []
        for executor in (Forced(isa, threads), executor_for("reference", "bfloat16")):
            stepper = Stepper(executor, program, self.tensors, **options)
            got.append([stepper.step(*runs) for runs in steps][-1])
        assert np.isfinite(got[0]).all() and got[0].std() > 0
        return got[0], got[1]


def rows(width: int, *, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((ROWS, width)) * scale).astype(np.float32)


ALL = [Run(0, 0, tuple(range(ROWS)))]


@pytest.mark.parametrize("scale", [1.0, 13.5])
def test_embed_is_exact(isa, scale):
    bench = Bench()
    bench.builder.embed("logits", "token", bench.weight("table", rows(45)), scale=scale)
    got, want = bench.both(isa, ALL)
    assert np.array_equal(got, want)


def test_take_chooses_rows(isa):
    bench = Bench()
    bench.builder.take("logits", bench.input("x", rows(45)), "logit_row")
    got, want = bench.both(isa, [Run(0, 0, tuple(range(20)), logits_from=13), Run(1, 0, (30, 31), logits_from=1)])
    assert got.shape == (8, 45) and np.array_equal(got, want)


def test_add_and_concat_are_exact(isa):
    bench = Bench()
    x, y = bench.input("x", rows(45)), bench.input("y", rows(45, seed=1, scale=1e-3))
    z = bench.input("z", rows(19, seed=2))
    bench.builder.concat("logits", bench.builder.add("sum", x, y), z)
    got, want = bench.both(isa, ALL)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("width", [1, 16, 45, 576])
def test_quantize_rounds_to_nearest_even_bit_for_bit(isa, width):
    bench = Bench()
    data = rows(width)
    # Ties to even, to odd, just beside a tie, the largest finite, zeros of both signs.
    special = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7F0000, 0x00000000, 0x80000000], np.uint32)
    data.reshape(-1)[: len(special)] = special.view(np.float32)
    bench.builder.linear("logits", bench.input("x", data), bench.weight("one", np.eye(width, dtype=np.float32), "bf16"))
    got, want = bench.both(isa, ALL)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("order", ["llama", "fp32_mul", "gemma"])
@pytest.mark.parametrize(("width", "heads"), [(45, 0), (576, 0), (72, 3), (96, 4)])
def test_norm(isa, order, width, heads):
    bench = Bench()
    weight = bench.weight("w", 1 + 0.3 * rows(width // max(heads, 1))[0])
    data = rows(width, scale=30.0)
    data[3] *= 1e-4  # small enough for eps to matter
    bench.builder.norm("logits", bench.input("x", data), weight, eps=1e-5, order=order, heads=heads)
    got, want = bench.both(isa, ALL)
    assert (np.abs(got - want) <= (width + 8) * U * np.abs(want)).all()


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [45, 96])
def test_glu(isa, act, width):
    bench = Bench()
    gate = rows(width, scale=4.0)
    gate[0, :8] = [-90, 90, -20, 20, 0, -0.0, 1e-6, -1e-6]
    up = rows(width, seed=1)
    x, y = bench.input("x", gate), bench.input("y", up)
    bench.builder.export(bench.builder.glu("logits", x, y, act=act))
    got, want = bench.both(isa, ALL)
    # The exponent's argument is rounded before exp: an error of |argument| units in the last place of the result.
    assert (np.abs(got - want) <= 64 * U * (1 + np.abs(gate)) * np.abs(up) + 1e-30).all()


@pytest.mark.parametrize("width", [45, 96])
def test_a_clamped_glu(isa, width):
    bench = Bench()
    gate, up = rows(width, scale=4.0), rows(width, seed=1, scale=4.0)
    gate[0, :6], up[0, :6] = [-90, 90, 7, 7.5, 0, -0.0], [90, -90, -7, 7, 0, 1e-6]
    x, y = bench.input("x", gate), bench.input("y", up)
    bench.builder.export(bench.builder.glu("logits", x, y, act="clamped", alpha=1.702, limit=7.0))
    got, want = bench.both(isa, ALL)
    assert (np.abs(got - want) <= 64 * U * (1 + 2 * np.abs(gate)) * 8 + 1e-30).all()
    assert np.abs(want).max() > 40 and got[0, 1] == got[0, 1]


@pytest.mark.parametrize("position", [0, 1000, 100_000])
def test_rope_angles(isa, position):
    bench = Bench()
    inv_freq = tuple(float(np.float32(500_000.0 ** (-i / 12))) for i in range(12))
    bench.builder.rope_angles("logits", "position", inv_freq=inv_freq, factor=1.5)
    got, want = bench.both(isa, [Run(0, position, (1, 2, 3, 4, 5))], length=100_016)
    assert np.abs(got - want).max() <= 4 * U * 1.5


@pytest.mark.parametrize(("d", "rotary"), [(24, 24), (64, 64), (24, 12), (80, 32)])
def test_rope(isa, d, rotary):
    bench = Bench()
    data = rows(3 * d)
    inv_freq = tuple(float(np.float32(500.0 ** (-2 * i / rotary))) for i in range(rotary // 2))
    angles = bench.builder.rope_angles("cs", "position", inv_freq=inv_freq)
    bench.builder.rope("logits", bench.input("x", data), angles, heads=3, rotary=rotary)
    got, want = bench.both(isa, ALL)
    assert np.abs(got - want).max() <= 16 * U * np.abs(data).max()


def matrix(rows_out: int, width: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows_out, width)).astype(np.float32) / width**0.5
    return from_bf16(to_bf16(values))


def within(got, want, x, *weights):
    """c u sum |terms| of the products of one row, for each output."""
    bound = sum(np.abs(x) @ np.abs(w).T for w in weights)
    assert (np.abs(got - want) <= (x.shape[1] + 16) * U * bound + 1e-30).all()


@pytest.mark.parametrize("biased", [False, True])
def test_fused_qkv(isa, biased):
    bench = Bench()
    x = from_bf16(to_bf16(rows(45)))
    h = bench.input("x", x)
    widths, outs, matrices = (40, 24, 33), [], []
    for seed, width in enumerate(widths):
        matrices.append(matrix(width, 45, seed))
        bias = bench.weight(f"b{seed}", rows(width, seed=9 + seed)[0]) if biased else None
        outs.append(bench.builder.linear(f"out{seed}", h, bench.weight(f"w{seed}", matrices[-1], "bf16"), bias))
    bench.builder.concat("logits", bench.builder.concat("two", *outs[:2]), outs[2])
    got, want = bench.both(isa, ALL, threads=3)
    assert "fused.qkv" in bench.kinds
    within(got, want, x, np.concatenate(matrices), *([np.ones((sum(widths), 45))] if biased else []))


@pytest.mark.parametrize("biased", [False, True])
def test_fused_linear_add(isa, biased):
    bench = Bench()
    x, w = from_bf16(to_bf16(rows(45))), matrix(70, 45, 1)
    bias = bench.weight("b", rows(70, seed=2)[0]) if biased else None
    y = bench.builder.linear("y", bench.input("x", x), bench.weight("w", w, "bf16"), bias)
    bench.builder.add("logits", bench.input("rest", rows(70, seed=3)), y)
    got, want = bench.both(isa, ALL)
    assert "fused.linear_add" in bench.kinds
    within(got, want, x, w, np.ones((70, 45)))


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [33, 100])
def test_fused_gate_up(isa, act, width):
    """Read back through an identity, exact in bf16: a result may fall to the other side of one rounding."""
    bench = Bench()
    h = bench.input("x", from_bf16(to_bf16(rows(45))))
    gate = bench.builder.linear("gate", h, bench.weight("wg", 2 * matrix(width, 45, 1), "bf16"))
    up = bench.builder.linear("up", h, bench.weight("wu", matrix(width, 45, 2), "bf16"))
    f = bench.builder.glu("f", gate, up, act=act)
    bench.builder.linear("logits", f, bench.weight("one", np.eye(width, dtype=np.float32), "bf16"))
    got, want = bench.both(isa, ALL)
    assert "fused.gate_up" in bench.kinds
    assert (np.abs(got - want) <= 2.0**-7 * np.abs(want) + 1e-6).all()
    assert (got == want).mean() > 0.98


def test_fused_norm_pads_what_the_next_linear_reads(isa):
    bench = Bench()
    h = bench.builder.norm(
        "h", bench.input("x", rows(45)), bench.weight("w", rows(45, seed=1)[0]), eps=1e-6, dtype="act"
    )
    bench.builder.linear("logits", h, bench.weight("one", np.eye(45, dtype=np.float32), "bf16"))
    got, want = bench.both(isa, ALL)
    assert "fused.norm" in bench.kinds
    assert (np.abs(got - want) <= 2.0**-7 * np.abs(want)).all() and (got == want).mean() > 0.98


def attention_bench(d, heads, kv_heads, window=0, **options):
    """q, k and v are rows that bf16 holds exactly: what is left are the rounding of P and the order of sums."""
    bench = Bench()
    exact = lambda width, seed, scale: bench.input(  # noqa: E731
        f"in{seed}", from_bf16(to_bf16(rows(width, seed=seed, scale=scale)))
    )
    q, k = exact(heads * d, 3, 2 / d**0.25), exact(kv_heads * d, 4, 2 / d**0.25)
    v = exact(kv_heads * d, 5, 1.0)
    b = bench.builder
    group = b.group(KVGroup("window", "window", window) if window else KVGroup("full", "full"))
    caches = {"cache_k": b.cache(group, "k", kv_heads * d), "cache_v": b.cache(group, "v", kv_heads * d)}
    kv = b.kv_write("kv", k, v, **caches, kv_heads=kv_heads)
    b.attention("logits", q, kv, **caches, heads=heads, kv_heads=kv_heads, scale=d**-0.5, window=window, **options)
    return bench


def tokens(count, seed=0):
    return tuple(np.random.default_rng(seed).integers(0, ROWS, count).tolist())


def assert_attention(got, want):
    # |v| stays below 4.5; P is rounded to 9 bits, relative.
    assert np.abs(got - want).max() <= 4.5 * 2.0**-8


@pytest.mark.parametrize(
    ("d", "heads", "kv_heads"), [(2, 3, 1), (24, 6, 3), (64, 9, 3), (80, 4, 4), (96, 4, 2), (128, 8, 1), (256, 2, 1)]
)
def test_attention_prompt_and_decode(isa, d, heads, kv_heads):
    bench = attention_bench(d, heads, kv_heads)
    prompt = [Run(0, 0, tokens(150)), Run(1, 0, tokens(21, 1))]
    assert_attention(*bench.both(isa, prompt, [Run(0, 150, tokens(1, 2)), Run(1, 21, tokens(3, 3))], length=160))


@pytest.mark.parametrize("count", [511, 512, 513, 1030])
def test_attention_over_segments(isa, count):
    bench = attention_bench(24, 6, 3)
    prompt = [Run(0, 0, tokens(count))]
    assert_attention(*bench.both(isa, prompt, [Run(0, count, tokens(1, 2))], length=1040))


@pytest.mark.parametrize("window", [0, 1100])
def test_segments_shared_among_threads_merge_in_one_order(isa, window):
    """In f32, before any rounding hides the order: one row of few heads, so that threads share its segments."""
    got = []
    for threads in (1, 3):
        bench = attention_bench(24, 2, 1, window)
        bench.builder.export("logits")
        steps = Stepper(Forced(isa, threads), bench.builder.build(), bench.tensors, length=2100)
        steps.prompt(tokens(2080), chunk=520)
        got.append(np.concatenate([steps.step(Run(0, at, tokens(1, at), no_write=(0,))) for at in range(2000, 2080)]))
    assert got[0].std() > 0 and np.array_equal(*got)


@pytest.mark.parametrize("window", [1, 7, 16, 130, 600])
def test_attention_sees_its_window_alone(isa, window):
    bench = attention_bench(24, 6, 3, window)
    prompt = [Run(0, 0, tokens(700))]
    assert_attention(*bench.both(isa, prompt, [Run(0, 700, tokens(9, 2))], length=720))
