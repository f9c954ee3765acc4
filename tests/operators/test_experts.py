"""Operators of mixtures of experts: native kernels against their twins, and rows that never feel their neighbours."""

import numpy as np
import pytest
import torch
from forced import Forced
from odd_model import to_bf16
from stepping import Run, Stepper

from octavo.backends import executor_for
from octavo.errors import ConfigError
from octavo.program import experts
from octavo.program.builder import Builder
from octavo.program.cost import op_cost
from octavo.program.experts import Matrices, Routing
from octavo.program.ir import T
from octavo.program.lower import lower
from octavo.types import StepShape
from octavo.weights.kinds import Tensor

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
U = 2.0**-24
ROWS = 37
ALL = Run(0, 0, tuple(range(ROWS)))


@pytest.fixture(params=native.usable_isas())
def isa(request):
    return request.param


class Bench:
    """A program whose inputs are rows of embeddings, one a token."""

    def __init__(self):
        self.builder, self.tensors = Builder("bench"), {}

    def weight(self, name, tensor, *, plain=False):
        held = tensor if isinstance(tensor, Tensor) else Tensor("f32", tensor.shape, np.ascontiguousarray(tensor))
        self.tensors[name] = held
        return self.builder.weight(name, held.shape, hf=name, gguf=name, plain=plain)

    def input(self, name, data):
        return self.builder.embed(name, "token", self.weight(f"{name}.table", data))

    def stepper(self, executor):
        return Stepper(executor, self.builder.build(), self.tensors)

    def both(self, isa, threads=2):
        """Steppers of the native class and of its twin."""
        self.builder.export("logits")
        return self.stepper(Forced(isa, threads)), self.stepper(executor_for("reference", "bfloat16"))


def noise(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def stack(kind, experts, m, n, seed=0, group=32):
    """Random experts of one kind."""
    random = np.random.default_rng(seed)
    if kind == "bf16":
        return Tensor("bf16", (experts, m, n), to_bf16(random.standard_normal((experts, m, n)) / n**0.5))
    scale = (0.02 + random.random((experts, m, n // group)) * 0.02).astype(np.float16).view(np.uint16)
    if kind == "i8":
        data = random.integers(-127, 128, (experts, m, n), np.int8)
        return Tensor("i8", (experts, m, n), data, group=group, offset=0, scale=scale)
    data = random.integers(0, 256, (experts, m, n // 2), np.uint8)
    return Tensor("u4", (experts, m, n), data, group=group, offset=8, scale=scale)


def one_of(tensor, expert):
    arrays = [None if array is None else np.ascontiguousarray(array[expert]) for array in (tensor.data, tensor.scale)]
    return Tensor(tensor.kind, tensor.shape[1:], arrays[0], tensor.group, tensor.offset, arrays[1])


ROUTINGS = {
    "top-1": (4, Routing(k=1)),
    "softmax": (60, Routing(k=4)),
    "renormalized": (128, Routing(k=8, normalize=True)),
    "all of them": (5, Routing(k=5, normalize=True)),
    "best groups": (160, Routing(k=6, groups=8, top_groups=3, scale=16.0)),
    "sigmoid": (
        256,
        Routing(k=8, rule="sigmoid", normalize=True, scale=2.5, groups=8, top_groups=4, group_score="pairs"),
    ),
    "sigmoid, one group": (33, Routing(k=3, rule="sigmoid", normalize=True)),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_route(isa, name):
    count, routing = ROUTINGS[name]
    bench = Bench()
    logits = noise(ROWS, count, scale=2.0)
    logits[3, :] = logits[3, 0]  # nothing but ties
    logits[4, count // 2 :] = logits[4, : count - count // 2]
    sigmoid = routing.rule == "sigmoid"
    bias = bench.weight("bias", noise(count, seed=1, scale=0.2)) if sigmoid else None
    experts.route(bench.builder, "ids", "logits", bench.input("x", logits), routing, bias)
    bench.builder.export("ids")
    mine, twin = bench.both(isa)
    got, want = mine.step(ALL), twin.step(ALL)
    ids = mine.session.view("ids").view(np.int32)
    assert np.array_equal(ids, twin.session.view("ids"))
    assert (np.diff(ids) > 0).all()
    if not sigmoid:
        assert ids[3].tolist() == list(range(routing.k))
    assert (np.abs(got - want) <= 64 * U * (1 + np.abs(logits).max()) * np.abs(want)).all()
    if routing.normalize:
        assert np.allclose(got.sum(1), routing.scale, rtol=1e-5)
    assert np.array_equal(mine.step(Run(1, 0, (7, 3)))[1], got[3])


def test_a_row_that_is_no_number_chooses_experts_all_the_same(isa):
    bench = Bench()
    logits = noise(ROWS, 20)
    logits[5] = np.nan
    experts.route(bench.builder, "ids", "logits", bench.input("x", logits), Routing(k=3, normalize=True))
    bench.builder.export("ids")
    mine, _ = bench.both(isa)
    shares = mine.step(ALL)
    assert mine.session.view("ids").view(np.int32)[5].tolist() == [0, 1, 2]
    assert np.isnan(shares[5]).all() and np.isfinite(np.delete(shares, 5, 0)).all()


def test_dispatch_sorts_positions_by_expert_and_row(isa):
    bench = Bench()
    ids, _ = experts.route(bench.builder, "ids", "logits", bench.input("x", noise(ROWS, 9)), Routing(k=2))
    names = experts.dispatch(bench.builder, "d", ids, 9)
    for name in names:
        bench.builder.export(name)
    mine, twin = bench.both(isa, threads=3)
    mine.step(ALL), twin.step(ALL)
    for name in names:
        assert np.array_equal(mine.session.view(name).view(np.int32).ravel(), twin.session.view(name).ravel())
    begin = twin.session.view("d.begin")
    assert begin[-1] == 2 * ROWS and (np.diff(begin) >= 0).all()


@pytest.mark.parametrize(("m", "n"), [(1, 48), (5, 45), (128, 96), (33, 7)])
def test_linear_f32_rounds_nothing_on_the_way(isa, m, n):
    bench = Bench()
    data, w, b = noise(ROWS, n), noise(m, n, seed=1), noise(m, seed=2)
    names = bench.weight("w", w, plain=True), bench.weight("b", b)
    experts.linear_f32(bench.builder, "logits", bench.input("x", data), *names)
    mine, twin = bench.both(isa, threads=3)
    got, want = mine.step(ALL), twin.step(ALL)
    assert (np.abs(got - want) <= (n + 4) * U * (np.abs(data) @ np.abs(w).T + np.abs(b))).all()
    assert np.array_equal(mine.step(Run(1, 0, (9,)))[0], got[9])


@pytest.mark.parametrize("gates", [1, 45])
def test_gate(isa, gates):
    bench = Bench()
    x, g = noise(ROWS, 45), noise(ROWS, gates, seed=1, scale=6.0)
    experts.gate(bench.builder, "logits", bench.input("x", x), bench.input("g", g))
    mine, twin = bench.both(isa)
    got, want = mine.step(ALL), twin.step(ALL)
    assert (np.abs(got - want) <= 64 * U * (1 + np.abs(g)) * np.abs(x)).all()


def expert_program(kind, count, m, n, *, k=2, seed=0):
    """Every expert's answers to the rows that chose it, and the same matrices as ordinary linears over all rows."""
    bench = Bench()
    x = bench.input("x", noise(ROWS, n, seed=seed))
    routing = experts.route(bench.builder, "ids", "shares", bench.input("r", noise(ROWS, count, seed=3)), Routing(k=k))
    begin, rows, _ = experts.dispatch(bench.builder, "d", routing[0], count)
    tensor = stack(kind, count, m, n)
    bias = bench.weight("bias", noise(count, m, seed=5), plain=True)
    experts.expert_linear(bench.builder, "logits", x, begin, bench.weight("w", tensor), bias, rows=rows)
    for expert in range(count):
        alone = bench.weight(f"w{expert}", one_of(tensor, expert))
        row = bench.weight(f"b{expert}", np.ascontiguousarray(bench.tensors["bias"].data[expert]))
        bench.builder.export(bench.builder.linear(f"y{expert}", x, alone, row))
    for name in ("logits", begin, rows):
        bench.builder.export(name)
    return bench


@pytest.mark.parametrize("activations", ["bf16", "int", "i8g32"])
@pytest.mark.parametrize("kind", ["bf16", "i8", "u4"])
def test_experts_answer_as_ordinary_linears_do_to_the_bit(isa, kind, activations):
    bench = expert_program(kind, 6, 45, 96)

    class Eating(Forced):
        def lower(self, program, kinds, **options):
            return super().lower(program, kinds, activations=activations, **options)

    for threads in (1, 3):
        stepper = bench.stepper(Eating(isa, threads))
        got = stepper.step(ALL)
        begin = stepper.session.view("d.begin").view(np.int32).ravel()
        rows = stepper.session.view("d.rows").view(np.int32).ravel()
        assert len(got) == 2 * ROWS == begin[-1]
        for expert in range(6):
            mine = slice(begin[expert], begin[expert + 1])
            assert np.array_equal(got[mine], stepper.session.view(f"y{expert}")[rows[mine]])


def mixture_bench(kind, count, d, f, *, k, biased=False, act="silu"):
    bench = Bench()
    b = bench.builder
    x = bench.input("x", noise(ROWS, d))
    routing = experts.route(
        b, "ids", "shares", bench.input("r", noise(ROWS, count, seed=3)), Routing(k=k, normalize=True)
    )
    shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
    names = {
        name: bench.weight(name, stack(kind, count, *shape, seed=i)) for i, (name, shape) in enumerate(shapes.items())
    }
    if biased:
        for i, (name, shape) in enumerate(shapes.items()):
            names[f"{name}_bias"] = bench.weight(f"{name}.b", noise(count, shape[0], seed=9 + i), plain=True)
    mixed = experts.mixture(b, "0", x, routing, Matrices(**names), act=act)
    b.take("logits", mixed, "logit_row")
    return bench


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("kind", "d", "f"), [("bf16", 45, 40), ("i8", 64, 96), ("u4", 96, 64)])
def test_a_mixture_is_its_twin_and_knows_no_batch(isa, kind, d, f, biased):
    bench = mixture_bench(kind, 7, d, f, k=3, biased=biased)
    mine, twin = bench.both(isa, threads=1)
    kinds = [op.kind for op in mine.program.ops]
    assert "fused.expert_gate_up" in kinds and kinds.count("expert_linear") == 1
    got, want = mine.step(ALL), twin.step(ALL)
    assert np.abs(got - want).max() <= (0.02 if kind == "bf16" else 0.05) * np.abs(want).max()
    assert np.array_equal(bench.stepper(Forced(isa, 3)).step(ALL), got)
    parts = [mine.step(Run(1, at, tuple(range(at, at + 1)))) for at in range(ROWS)]
    assert np.array_equal(np.concatenate(parts), got)


def test_more_rows_than_are_gathered_at_a_time(isa):
    """One expert that everybody chooses, in one step and one by one."""
    bench = mixture_bench("u4", 2, 32, 32, k=2)
    mine, _ = bench.both(isa)
    tokens = tuple(i % ROWS for i in range(150))
    got = mine.step(Run(0, 0, tokens))
    alone = np.concatenate([mine.step(Run(1, i, (i,))) for i in range(ROWS)])
    assert np.array_equal(got, alone[list(tokens)])


def test_costs_count_the_experts_that_can_be_chosen():
    bench = mixture_bench("u4", 16, 32, 64, k=2)
    bench.builder.export("logits")
    program = lower(bench.builder.build(), {name: t.kind for name, t in bench.tensors.items()})
    ops = {op.kind: op for op in program.ops}
    stored = 16 * 32 * 64 * 5 // 8
    for tokens, distinct in ((1, 2), (3, 6), (100, 16)):
        cost = op_cost(program, ops["expert_linear"], StepShape.decode(tokens, 0))
        assert cost.weight_bytes == stored * distinct // 16
        assert cost.flops == 2 * 32 * 64 * 2 * tokens
        both = op_cost(program, ops["fused.expert_gate_up"], StepShape.decode(tokens, 0))
        assert both.weight_bytes == 2 * cost.weight_bytes and both.flops == 2 * cost.flops


def test_what_cannot_be_chosen_is_refused():
    bench = Bench()
    logits = bench.input("x", noise(4, 12))
    for wrong in (Routing(k=13), Routing(k=0), Routing(k=1, groups=5), Routing(k=5, groups=3, top_groups=1)):
        with pytest.raises(ConfigError, match="cannot be chosen"):
            experts.route(bench.builder, "ids", "shares", logits, wrong)
    assert bench.builder.buffers["x"].shape == (T, 12)


def test_the_switch_transformers_rule():
    """Top-1 of a softmax, the probability as the share: against its own few lines (dropless)."""
    from transformers import SwitchTransformersConfig
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersTop1Router

    torch.manual_seed(0)
    config = SwitchTransformersConfig(
        hidden_size=24, d_model=24, num_experts=6, expert_capacity=64, router_jitter_noise=0.0
    )
    router = SwitchTransformersTop1Router(config).eval()
    hidden = torch.randn(1, ROWS, 24)
    with torch.no_grad():
        answer = router(hidden)
    bench = Bench()
    w = bench.weight("w", router.classifier.weight.detach().numpy().copy(), plain=True)
    logits = experts.linear_f32(bench.builder, "l", bench.input("x", hidden[0].numpy().copy()), w)
    experts.route(bench.builder, "ids", "logits", logits, Routing(k=1))
    bench.builder.export("ids")
    mine, _ = bench.both(native.usable_isas()[-1])
    shares = mine.step(ALL)
    chosen = mine.session.view("ids").view(np.int32).ravel()
    probabilities = torch.softmax(hidden[0] @ router.classifier.weight.T, -1).detach()
    assert np.allclose(shares.ravel(), probabilities.max(-1).values.numpy(), rtol=1e-5)
    assert np.array_equal(chosen, _switch_choice(answer, probabilities))


def _switch_choice(answer, probabilities):
    """Of the router's outputs the one that says who was chosen, whatever this version calls it."""
    for part in answer:
        if part.dtype in (torch.int64, torch.int32, torch.bool) and part.shape[-1] == probabilities.shape[1]:
            return part.reshape(-1, probabilities.shape[1]).int().argmax(-1).numpy()
        if part.dtype == torch.int64 and part.numel() == len(probabilities):
            return part.flatten().numpy()
    raise AssertionError([part.shape for part in answer])
