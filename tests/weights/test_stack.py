"""Stacks of experts: a tensor each, or one for all with gate above up; GGUF's own; what is not alike."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.backends import executor_for
from octavo.backends.port import Kept, Limits
from octavo.errors import BadFileError, ConfigError
from octavo.program.builder import Builder
from octavo.program.experts import Routing, dispatch, expert_linear, route
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.prepare import prepare, prepared_shape
from octavo.weights.stack import Stack

E, M, N = 3, 40, 64
RANDOM = np.random.default_rng(0)
GATE, UP, DOWN = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((E, M, N), (E, M, N), (E, N, M)))
STEM = "model.layers.0.mlp.experts."


def each():
    names = {"gate_proj": GATE, "up_proj": UP, "down_proj": DOWN}
    return {f"{STEM}{e}.{name}.weight": stack[e] for name, stack in names.items() for e in range(E)}


def whole():
    return {f"{STEM}gate_up_proj": np.concatenate((GATE, UP), 1), f"{STEM}down_proj": DOWN}


def opened(folder, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({}))
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors")
    return open_checkpoint(folder, matrices="f32")


def program():
    b = Builder("stacks")
    for name, shape in {"gate": (E, M, N), "up": (E, M, N), "down": (E, N, M)}.items():
        b.weight(name, shape, hf=f"elsewhere.{{e}}.{name}", gguf=name, others=(f"{STEM}{{e}}.{name}_proj.weight",))
    return b.build()


@pytest.mark.parametrize("tensors", [each, whole])
def test_both_layouts_are_the_same_weights(tmp_path, tensors):
    checkpoint = opened(tmp_path, tensors())
    weights = program().weights
    found = match(weights, checkpoint)
    for name, want in {"gate": GATE, "up": UP, "down": DOWN}.items():
        stored = checkpoint.stored(found[name], weights[name].prep)
        assert stored.shape == want.shape and checkpoint.kind_of(found[name]) == "f32"
        assert checkpoint.stored_bytes(found[name]) == stored.file_bytes // (
            2 if tensors is whole and name != "down" else 1
        )
        assert np.array_equal(stored.read().data, want)
        assert isinstance(stored, Stack) == (tensors is each)


def logits_of(stream, kept=None):
    """One expert_linear over rows of a table, natively, with its weight from the file."""
    b = Builder("one")
    b.weight("table", (9, N), hf="table", gguf="")
    x = b.embed("x", "token", "table")
    ids, _ = route(b, "ids", "s", b.linear("l", x, b.weight("r", (E, N), hf="r", gguf="")), Routing(k=2))
    begin, rows, _ = dispatch(b, "d", ids, E)
    w = b.weight("w", (E, M, N), hf=f"{STEM}{{e}}.up_proj.weight", gguf="")
    expert_linear(b, "logits", x, begin, w, rows=rows)
    b.export("logits")
    native = executor_for("native")
    lowered = native.lower(b.build(), dict.fromkeys(("table", "r", "w"), "bf16"))
    session = native.open({"p": lowered}, stream, Limits(16, 16, 1, 16, 2, 16), threads=1, kept=kept)
    from stepping import Run, header

    session.run("p", header([Run(0, 0, tuple(range(9)))]))
    return session.view("logits").copy()


def test_rows_go_from_the_file_into_panels(tmp_path):
    small = {"table": RANDOM.standard_normal((9, N)).astype(np.float32), "r": GATE[:, 0].copy()}
    answers = []
    for number, tensors in enumerate((each(), whole())):
        opened(tmp_path / str(number), {**small, **tensors}).close()
        checkpoint = open_checkpoint(tmp_path / str(number))
        names = {"table": "table", "r": "r", "w": f"{STEM}{{e}}.up_proj.weight"}
        stream = ((name, checkpoint.stored(source)) for name, source in names.items())
        answers.append(logits_of(lambda stream=stream: stream))
        read = ((name, checkpoint.read(source)) for name, source in names.items())
        answers.append(logits_of(lambda read=read: read, Kept(tmp_path / "kept", bytes([number]))))
        answers.append(logits_of(None, Kept(tmp_path / "kept", bytes([number]))))  # from the kept file alone
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert answers[0].std() > 0.1


def test_experts_that_differ_are_named(tmp_path):
    tensors = each()
    tensors[f"{STEM}1.up_proj.weight"] = np.zeros((M, N + 2), np.float32)
    with pytest.raises(BadFileError, match=r"experts\.1\.up_proj"):
        match(program().weights, opened(tmp_path, tensors))


def test_too_few_experts_are_told(tmp_path):
    tensors = {name: array for name, array in each().items() if f"{E - 1}." not in name}
    with pytest.raises(ConfigError, match=r"\[3, 40, 64\], the file holds \[2, 40, 64\]"):
        match(program().weights, opened(tmp_path, tensors))
    with pytest.raises(BadFileError, match=r"lacks elsewhere\.0\.gate"):
        match(program().weights, opened(tmp_path, {"x": GATE}))


def test_choices_of_rows_and_columns():
    from octavo.weights.kinds import Tensor

    tensor = Tensor("f32", GATE.shape, GATE)
    for prep, want in {
        (("rows", 1, 2, 20),): GATE[:, 1::2],
        (("columns", 0, 2, 32),): GATE[..., ::2],
        (("transpose",), ("rows", 5, 1, 7)): GATE.swapaxes(1, 2)[:, 5:12],
    }.items():
        got = prepare(tensor, prep)
        assert np.array_equal(got.data, want) and got.shape == want.shape == prepared_shape(GATE.shape, prep)
    assert prepared_shape((4, 6), (("rows", 1, 2, 3),)) == (2, 6)
    assert prepare(Tensor("f32", (5,), np.zeros(5, np.float32)), (("row",),)).shape == (1, 5)


def test_only_what_is_rounded_is_said_to_be(tmp_path):
    opened(tmp_path, {"router": GATE[0], "x": UP[0, 0]}).close()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.notes == ["F32 matrices are held as bf16, rounded to nearest even"]
    assert checkpoint.rounding({"router"}) == []
