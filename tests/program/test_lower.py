"""Lowering: what the passes put where, and that each stage stays one program with every name written once."""

import pytest

from octavo.errors import ConfigError, EngineError
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.builder import Builder
from octavo.program.lower import activation_kinds, bind, default_kinds, fuse, lower, quantize
from octavo.types import KVGroup

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def stages(**changes):
    plain = program_for(ModelConfig.from_mapping({**CONFIG, **changes}))
    bound = bind(plain, default_kinds(plain), {"embed": 12345})
    quantized = quantize(bound)
    return plain, bound, quantized, fuse(quantized)


def check_names(program):
    """Every value is written once, before it is read, and by an operator whose buffer says so."""
    known = {name for name, buffer in program.buffers.items() if buffer.kind == "header"}
    for op in program.ops:
        leaves = op.parts or (op,)
        inside = {name for leaf in leaves for name in leaf.outs}
        assert set(op.ins) <= known
        assert {name for leaf in leaves for name in leaf.ins} - inside == set(op.ins)
        assert not inside & known
        assert [name for leaf in leaves for name in leaf.weights if name not in op.weights] == []
        known |= set(op.outs)
        assert set(op.outs) <= program.buffers.keys()
    assert set(program.exports) <= known


@pytest.mark.parametrize("stage", range(4))
def test_every_stage_is_one_program(stage):
    program = stages()[stage]
    check_names(program)
    assert program.stage == ("plain", "bound", "quantized", "fused")[stage]


def test_bind_says_kind_and_bytes():
    _, bound, _, _ = stages()
    assert (bound.weights["0.wq"].kind, bound.weights["0.bq"].kind) == ("bf16", "f32")
    assert (bound.weights["embed"].stored_bytes, bound.weights["norm"].stored_bytes) == (12345, None)


def test_quantize_stands_before_every_linear_once_a_value():
    plain, _, quantized, _ = stages()
    linears = [op for op in quantized.ops if op.kind == "linear"]
    assert len(linears) == len([op for op in plain.ops if op.kind == "linear"])
    written = [op.outs[0] for op in quantized.ops if op.kind == "quantize"]
    assert len(written) == len(set(written)) == 4 * 2 + 1
    for linear in linears:
        assert linear.ins[0] in written
        assert quantized.buffers[linear.ins[0]].dtype == "bf16"
    assert {tensor.dtype for group in quantized.groups for tensor in group.tensors} == {"bf16"}
    assert {tensor.dtype for group in plain.groups for tensor in group.tensors} == {"f32"}
    assert "act" not in {buffer.dtype for buffer in quantized.buffers.values()}


def test_fused_operators_are_the_listed_ones():
    _, _, _, fused = stages()
    layer = ["fused.norm", "fused.qkv", "rope", "rope", "kv_write", "fused.attention", "fused.linear_add"]
    layer += ["fused.norm", "fused.gate_up", "fused.linear_add"]
    assert [op.kind for op in fused.ops] == ["embed", "rope_angles", *layer, *layer, "take", "fused.norm", "linear"]
    by_out = {op.outs[0]: op for op in fused.ops}
    assert by_out["0.q"].weights == ("0.wq", "0.wk", "0.wv", "0.bq", "0.bk", "0.bv")
    assert by_out["0.q"].outs == ("0.q", "0.k", "0.v")
    assert by_out["0.x1"].ins == ("0.a", "0.x")
    assert by_out["1.x"].ins == ("0.f", "0.x1")
    assert [part.kind for part in by_out["0.f"].parts] == ["linear", "linear", "glu", "quantize"]
    assert by_out["0.f"].attrs == {"act": "silu"}
    assert fused.buffers["0.f"].dtype == "bf16"
    assert "0.gate" not in fused.buffers and "0.gate" in {n for part in by_out["0.f"].parts for n in part.outs}


def test_what_is_exported_or_read_twice_does_not_vanish():
    b = Builder("taps")
    w = b.weight("w", (8, 8), hf="w", gguf="w")
    g = b.weight("g", (8,), hf="g", gguf="g")
    x = b.feed("hidden", 8)
    h = b.norm("h", x, g, eps=1e-6, dtype="act")
    b.export(h)
    y = b.linear("y", h, w)
    z = b.add("z", y, y)
    b.export(b.add("out", z, b.linear("y2", h, w)))
    program = lower(b.build(), {"w": "bf16", "g": "f32"})
    kinds = [(op.kind, op.outs[0]) for op in program.ops[1:]]
    assert kinds == [("norm", "h"), ("quantize", "h.act"), ("linear", "y"), ("add", "z"), ("fused.linear_add", "out")]
    assert program.buffers["h"].dtype == "f32"
    assert program.buffers["target/hidden"].kind == "foreign"


def test_three_linears_of_one_input_need_not_stand_together():
    b = Builder("scattered")
    names = [b.weight(name, (8, 8), hf=name, gguf=name) for name in ("wq", "wk", "wv")]
    x = b.feed("x", 8)
    q = b.linear("q", x, names[0])
    q2 = b.add("q2", q, q)
    k, v = b.linear("k", x, names[1]), b.linear("v", x, names[2])
    b.export(b.concat("out", b.concat("kv", k, v), q2))
    program = lower(b.build(), dict.fromkeys(names, "bf16"))
    known = {"target/x", "source_row"}
    for op in program.ops:
        assert set(op.ins) <= known
        known |= set(op.outs)
    assert "fused.qkv" in [op.kind for op in program.ops]


def test_passes_refuse_the_wrong_stage():
    plain, bound, _, fused = stages()
    with pytest.raises(EngineError, match="plain"):
        quantize(plain)
    with pytest.raises(EngineError, match="fused"):
        fuse(fused)
    with pytest.raises(EngineError, match="bound"):
        bind(bound, {})
    with pytest.raises(ConfigError, match="embed"):
        bind(plain, {})
    with pytest.raises(ConfigError, match="i4"):
        quantize(bound, "i4")


def test_builder_refuses_what_does_not_fit():
    b = Builder("wrong")
    w = b.weight("w", (8, 4), hf="w", gguf="w")
    x = b.feed("x", 8)
    b.group(KVGroup("full", "full"))
    with pytest.raises(ConfigError, match="width 4"):
        b.linear("y", x, w)
    with pytest.raises(ConfigError, match="z is read"):
        b.add("y", x, "z")
    b.add("y", x, x)
    with pytest.raises(ConfigError, match="twice"):
        b.add("y", x, x)
    with pytest.raises(ConfigError, match="do not rotate"):
        b.rope("r", x, b.rope_angles("angles", "position", inv_freq=(1.0, 0.5)), heads=4, rotary=4)
    caches = b.cache("full", "k", 4), b.cache("full", "v", 8)
    with pytest.raises(ConfigError, match="does not fill k"):
        b.kv_write("kv", x, x, *caches, kv_heads=2)
    with pytest.raises(ConfigError, match="do not fit"):
        b.attention("a", x, "k", cache_k="k", cache_v="v", heads=3, kv_heads=2, scale=1.0)
    with pytest.raises(ConfigError, match="declared twice"):
        b.weight("w", (8, 5), hf="w", gguf="w")


def integers(activations="int", kinds=None, **changes):
    plain = program_for(ModelConfig.from_mapping({**CONFIG, "head_dim": 32, **changes}))
    held = {name: kind if kind == "f32" else "u4" for name, kind in default_kinds(plain).items()}
    return lower(plain, held | (kinds or {}), activations=activations)


def eaten(program):
    """Operator -> the kind of what it eats, first layer and head."""
    linears = [op for op in program.ops if op.kind in LINEARS]
    kinds = {op.outs[0].removesuffix(".f32"): program.buffers[op.ins[0]].dtype for op in linears}
    return [kinds[name] for name in ("0.q", "0.x1", "0.f", "1.x", "logits")]


LINEARS = ("linear", "fused.qkv", "fused.linear_add", "fused.gate_up")


def test_activation_kinds_by_weights_and_writer():
    by_writer = ["i15q", "i8g32", "i15q", "i15q", "i15"]
    assert eaten(integers()) == by_writer
    assert activation_kinds([integers()]) == "i15+i15q+i8g32"
    assert eaten(integers("bf16")) == ["bf16"] * 5 and activation_kinds([integers("bf16")]) == "bf16"
    assert eaten(integers("int15")) == ["i15", "i8g32", "i15", "i15g32", "i15"]
    assert eaten(integers("i8g32")) == ["i8g32"] * 5
    assert eaten(integers(kinds={"0.wgate": "i8", "0.wup": "i8"})) == ["i15q", "i8g32", "i15", "i15q", "i15"]
    # one matrix of bf16 decides for all that eat the value
    assert eaten(integers(kinds={"0.wv": "bf16", "embed": "i8"})) == ["bf16", *by_writer[1:]]
    kinds = [op.kind for op in integers().ops]
    apart = [kind for kind in kinds if kind != "quantize"]  # what glu makes, once its row is whole
    assert apart == [op.kind for op in integers("bf16").ops] and kinds.count("quantize") == 2
    assert kinds.count("fused.gate_up") == 2
    assert {tensor.dtype for group in integers().groups for tensor in group.tensors} == {"bf16"}


def test_what_a_norm_reads_behind_attention_keeps_fifteen_bits():
    program = integers(architectures=["Olmo2ForCausalLM"])
    eaten = {op.outs[0]: program.buffers[op.ins[0]].dtype for op in program.ops if op.kind in LINEARS}
    assert {name: eaten[f"0.{name}"] for name in ("q", "o", "f", "d")} == dict.fromkeys("qofd", "i15g32")
    assert eaten["logits"] == "i15" and activation_kinds([program]) == "i15+i15g32"
    gemma = integers(architectures=["Gemma2ForCausalLM"])
    assert activation_kinds([gemma]) == "i15+i15g32"  # behind its norms and glu too


def test_heads_that_are_no_whole_blocks_are_quantized_apart():
    kinds = [op.kind for op in integers(head_dim=24).ops]
    assert kinds.count("attention") == 2 and kinds.count("quantize") == 4 and "fused.attention" not in kinds
    assert eaten(integers(head_dim=24)) == eaten(integers())
