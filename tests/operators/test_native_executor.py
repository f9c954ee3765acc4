"""Opening native sessions: classes, refusals, several programs over one set of tables, memory of a block."""

import numpy as np
import pytest
from forced import Forced
from odd_model import odd_model, prompt
from stepping import Run, Stepper, header

from octavo.backends import executor_for
from octavo.backends.port import Limits
from octavo.errors import EngineError, ResourceError, UnsupportedError
from octavo.program.builder import Builder
from octavo.program.ir import Buffer, Op, Program, T

native = pytest.importorskip("octavo.backends.native.executor", reason="the native part is not built")
LIMITS = Limits(64, 64, 2, 64, 9, 16)
TABLES = [0, 0, 0, 4, 5, 2, 7, 1, 1, 0, 0, 4, 3, 8, 4, 6]


def kinds_of(program, tensors):
    return {name: tensors[name].kind for name in program.weights}


def lowered(program, tensors):
    return executor_for("native").lower(program, kinds_of(program, tensors))


def open_programs(programs, tensors, limits=LIMITS, **options):
    return executor_for("native").open(programs, lambda: iter(tensors.items()), limits, threads=2, **options)


def test_the_best_class_is_chosen_and_named():
    program, tensors = odd_model()
    session = open_programs({"main": lowered(program, tensors)}, tensors)
    usable, available = native.usable_isas(), native.available_isas()
    assert session.numerics.isa == usable[-1]
    assert session.numerics.id == f"native-{native.VERSION}/bf16+f32/bf16/kv-bf16/{session.numerics.isa}"
    assert len(session.notes) == len(available) - available.index(usable[-1]) - 1


def test_the_environment_forces_a_class(monkeypatch):
    program, tensors = odd_model()
    monkeypatch.setenv("OCTAVO_ISA", "portable")
    assert open_programs({"main": lowered(program, tensors)}, tensors).numerics.isa == "portable"
    monkeypatch.setenv("OCTAVO_ISA", "pentium")
    with pytest.raises(ResourceError, match="'pentium' is not one of those here: portable"):
        open_programs({"main": lowered(program, tensors)}, tensors)


def test_a_failed_self_check_falls_back_one_class_and_says_so(monkeypatch):
    best = native.available_isas()[-1]
    if best == "portable":
        pytest.skip("this machine has no second class")
    monkeypatch.setattr(native._native, "isa_self_check", lambda isa: native.ISAS[isa] != best)
    program, tensors = odd_model()
    session = open_programs({"main": lowered(program, tensors)}, tensors)
    assert session.numerics.isa == native.available_isas()[-2]
    assert len(session.notes) == 1 and best in session.notes[0]


def test_an_operator_without_a_kernel_is_refused_by_name():
    buffers = {"token": Buffer("token", (T,), "i32", "header"), "x": Buffer("x", (T, 4))}
    program = Program("odd", (Op("teleport", ("token",), ("x",)),), buffers, {}, (), ())
    with pytest.raises(UnsupportedError, match="odd: operator teleport has no native kernel"):
        open_programs({"odd": program}, {})


def test_weights_must_fit_the_program():
    program, tensors = odd_model()
    main = {"main": lowered(program, tensors)}
    with pytest.raises(EngineError, match="weight norm was not given"):
        open_programs(main, {name: tensor for name, tensor in tensors.items() if name != "norm"})
    with pytest.raises(EngineError, match="weight stray belongs to no program"):
        open_programs(main, {**tensors, "stray": tensors["norm"]})


def test_a_cache_that_no_kernel_stores_is_refused():
    plain, _ = odd_model()
    with pytest.raises(UnsupportedError, match=r"0\.k_cache.*f32"):
        executor_for("native").block_bytes({"main": plain}, 16)


@pytest.mark.parametrize("block_tokens", [16, 32])
def test_block_bytes_are_those_of_the_session(block_tokens):
    program, tensors = odd_model()
    programs = {"main": lowered(program, tensors)}
    limits = Limits(64, 64, 2, 64, 9, block_tokens)
    held = open_programs(programs, tensors, limits).cache_bytes()
    assert held.shape == (9, executor_for("native").block_bytes(programs, block_tokens))
    # Two layers, K and V, three heads of 24, kept as 32, in bf16; in i8 with a scale each.
    assert held.shape[1] == 2 * 2 * 3 * 32 * 2 * block_tokens
    i8 = {"main": executor_for("native").lower(program, kinds_of(program, tensors), kv_dtype="i8")}
    held = open_programs(i8, tensors, limits).cache_bytes()
    assert held.shape[1] == executor_for("native").block_bytes(i8, block_tokens) == 2 * 2 * 3 * (32 + 4) * block_tokens


def drafter(tensors):
    """One layer of attention over what the target exports, with caches of its own."""
    b = Builder("draft")
    width = 72
    hidden = b.feed("1.x", width, "main")
    group = b.group(odd_model()[0].groups[0])
    caches = {"cache_k": b.cache(group, "draft.k", width), "cache_v": b.cache(group, "draft.v", width)}
    kv = b.kv_write("kv", hidden, hidden, **caches, kv_heads=3)
    a = b.attention("a", hidden, kv, **caches, heads=3, kv_heads=3, scale=0.2)
    b.weight("embed", tensors["embed"].shape, hf="model.embed_tokens.weight", gguf="token_embd.weight")
    b.linear("draft.logits", a, "embed")
    b.export("draft.logits")
    return b.build()


def test_programs_share_tables_and_exports_and_no_cache():
    program, tensors = odd_model()
    exporting = Program(
        program.name,
        program.ops,
        {**program.buffers, "1.x": Buffer("1.x", program.buffers["1.x"].shape, "f32", "export")},
        program.weights,
        program.groups,
        (*program.exports, "1.x"),
    )
    programs = {"main": lowered(exporting, tensors), "draft": lowered(drafter(tensors), tensors)}
    session = open_programs(programs, tensors)
    session.cache_bytes()[:] = 0xFF
    tokens = prompt(40)
    alone = Stepper(Forced(session.numerics.isa), program, tensors).prompt(tokens)
    tables = TABLES
    for at in range(0, 40, 8):
        session.run("main", header([Run(1, at, tuple(tokens[at : at + 8]))], tables))
        got = session.view("logits").copy()
        session.run("draft", header([Run(1, at, (0,) * 8)]))
        assert np.isfinite(session.view("draft.logits")).all()
        assert np.array_equal(session.view("logits"), got)  # an export lives until its own program runs again
        assert np.array_equal(got, alone[at : at + 8])
        tables = []
    assert session.view("draft.logits").std() > 0
