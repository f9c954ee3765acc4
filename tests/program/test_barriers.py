"""Which operators of a lowered program wait for all threads: decided while encoding, from what is read and written."""

from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.arena import place
from octavo.program.builder import Builder
from octavo.program.encode import barrier_flags
from octavo.program.lower import lower

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LAYER = [
    ("fused.qkv", True),
    ("rope", True),
    ("rope", False),
    ("kv_write", False),
    ("fused.attention", True),
    ("fused.linear_add", True),
    ("fused.norm", True),
    ("fused.gate_up", True),
    ("fused.linear_add", True),
    ("fused.norm", True),
]


def barriers(program):
    return list(zip((op.kind for op in program.ops), barrier_flags(program, place(program)), strict=True))


def test_row_operators_follow_one_another_and_linears_wait():
    plain = program_for(ModelConfig.from_mapping(CONFIG))
    got = barriers(lower(plain, dict.fromkeys(plain.weights, "bf16")))
    start = [("embed", False), ("rope_angles", False), ("fused.norm", False)]
    # Rows of the last layer are chosen across threads; the norm of the chosen rows follows at once.
    end = [*LAYER[:-1], ("take", True), ("fused.norm", False), ("linear", True)]
    assert got == [*start, *LAYER, *end]


def test_linears_side_by_side_do_not_wait_for_each_other():
    b = Builder("two")
    for name in ("table", "w1", "w2"):
        b.weight(name, (16, 16), hf=name, gguf=name)
    x = b.embed("x", "token", "table")
    b.add("sum", b.linear("a", x, "w1"), b.linear("b", x, "w2"))
    b.export("a")
    b.export("b")
    b.export("sum")
    got = barriers(lower(b.build(), dict.fromkeys(("table", "w1", "w2"), "bf16")))
    assert got == [("embed", False), ("quantize", False), ("linear", True), ("linear", False), ("add", True)]
