"""Cost rules against closed forms: bytes of the KV cache a token, FLOPs of a forward pass, and what fusing saves."""

from dataclasses import replace

import pytest

from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.cost import attended, op_cost, op_product, program_cost
from octavo.program.lower import bind, default_kinds, fuse, lower, quantize
from octavo.program.report import explain_rows, explain_totals
from octavo.program.rules import entry_bytes, stored_bytes
from octavo.types import StepShape


def program_of(
    architecture, layers, hidden, heads, kv_heads, head_dim, inner, vocab, *, tied=False, kv_dtype="bf16", **fields
):
    mapping = {
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": tied,
        "sliding_window": None,
        **fields,
    }
    plain = program_for(ModelConfig.from_mapping(mapping))
    return lower(plain, default_kinds(plain), kv_dtype=kv_dtype)


# name -> (shape, KV bytes a token in bf16, parameters or None)
KNOWN = {
    "Llama-2-7B": (("Llama", 32, 4096, 32, 32, 128, 11008, 32000), 524_288, 6_738_415_616),
    "Llama-3.1-8B": (("Llama", 32, 4096, 32, 8, 128, 14336, 128256), 131_072, 8_030_261_248),
    "Llama-3.1-70B": (("Llama", 80, 8192, 64, 8, 128, 28672, 128256), 327_680, 70_553_706_496),
    "Llama-3.1-405B": (("Llama", 126, 16384, 128, 8, 128, 53248, 128256), 516_096, None),
    "Mistral-7B": (("Mistral", 32, 4096, 32, 8, 128, 14336, 32768), 131_072, 7_248_023_552),
    "Qwen3-8B": (("Qwen3", 36, 4096, 32, 8, 128, 12288, 151936), 147_456, 8_190_735_360),
    "Qwen2.5-7B": (("Qwen2", 28, 3584, 28, 4, 128, 18944, 152064), 57_344, 7_615_616_512),
}
TIED = {
    "Llama-3.2-1B": (("Llama", 16, 2048, 32, 8, 64, 8192, 128256), 32_768, 1_235_814_400),
    "Qwen2.5-0.5B": (("Qwen2", 24, 896, 14, 2, 64, 4864, 151936), 12_288, 494_032_768),
    "Qwen3-0.6B": (("Qwen3", 28, 1024, 16, 8, 128, 3072, 151936), 114_688, 596_049_920),
    "SmolLM2-135M": (("Llama", 30, 576, 9, 3, 64, 1536, 49152), 23_040, 134_515_008),
    "SmolLM2-1.7B": (("Llama", 24, 2048, 32, 32, 64, 8192, 49152), 196_608, 1_711_376_384),
    "SmolLM3-3B": (("SmolLM3", 36, 2048, 16, 4, 128, 11008, 128256), 73_728, 3_075_098_624),
}
ALL = [(name, *row, False) for name, row in KNOWN.items()] + [(name, *row, True) for name, row in TIED.items()]


@pytest.mark.parametrize(("name", "shape", "kv_bytes", "parameters", "tied"), ALL, ids=[row[0] for row in ALL])
def test_known_sizes(name, shape, kv_bytes, parameters, tied):
    totals = explain_totals(program_of(*shape, tied=tied))
    assert sum(size for _, size in totals.kv_bytes_per_token) == kv_bytes
    if parameters is not None:
        assert totals.parameters == parameters


def test_forward_flops_by_the_closed_form():
    """2 P of the matrices (head on the logit rows only) + 4 H d per attended key and layer."""
    layers, hidden, heads, kv_heads, head_dim, inner, vocab = 3, 64, 6, 2, 16, 96, 1000
    program = program_of("Qwen3", layers, hidden, heads, kv_heads, head_dim, inner, vocab)
    body = layers * (hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden + 3 * hidden * inner)
    head = hidden * vocab
    decode = program_cost(program, StepShape.decode(5, 200))
    assert decode.flops == 5 * (2 * (body + head) + layers * 4 * heads * head_dim * 201)
    n = 512
    prompt = program_cost(program, StepShape.prefill(n))
    assert prompt.flops == 2 * body * n + 2 * head + layers * 4 * heads * head_dim * n * (n + 1) // 2


def test_attended_keys_by_counting():
    for window in (0, 1, 7, 100):
        for shape in (StepShape((5, 1, 9), (0, 30, 4), 3), StepShape.prefill(20)):
            count = 0
            for rows, context in zip(shape.rows, shape.contexts, strict=True):
                for index in range(context, context + rows):
                    count += min(index + 1, window) if window else index + 1
            assert attended(shape, window) == count


def test_a_windowed_layer_reads_what_a_row_can_see():
    full = program_of("Mistral", 2, 64, 4, 2, 16, 96, 100)
    windowed = program_of("Mistral", 2, 64, 4, 2, 16, 96, 100, sliding_window=32)
    shape = StepShape.decode(3, 999)
    entry = 2 * (2 * 2 * 16) * 2  # layers, k and v of 2 heads of 16, bf16
    assert program_cost(full, shape).cache_bytes == 3 * entry * (1000 + 1)
    assert program_cost(windowed, shape).cache_bytes == 3 * entry * (32 + 1)


def test_weights_are_read_once_whatever_the_rows():
    program = program_of("Llama", 2, 64, 4, 2, 16, 96, 1000)
    matrices = sum(stored_bytes(weight) for name, weight in program.weights.items() if name != "embed")
    for batch in (1, 8):
        cost = program_cost(program, StepShape.decode(batch, 10))
        assert cost.weight_bytes == matrices + batch * 64 * 2  # and a row of the embedding each


def test_stored_bytes_follow_the_file_when_known():
    mapping = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64}
    mapping |= {"num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 10}
    plain = program_for(ModelConfig.from_mapping(mapping))
    kinds = {**default_kinds(plain), "0.wq": "u4"}
    bound = bind(plain, kinds, {"0.wk": 777})
    assert stored_bytes(bound.weights["0.wk"]) == 777
    assert stored_bytes(bound.weights["0.wq"]) == 64 * 64 * 5 // 8
    assert stored_bytes(bound.weights["0.wv"]) == 64 * 64 * 2
    assert stored_bytes(bound.weights["norm"]) == 64 * 4


@pytest.mark.parametrize("shape", [StepShape.decode(1, 0), StepShape((3, 1), (10, 0), 2)])
def test_fusing_saves_the_values_that_vanish(shape):
    mapping = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64}
    mapping |= {"num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 10}
    plain = program_for(ModelConfig.from_mapping(mapping))
    quantized = quantize(bind(plain, default_kinds(plain)))
    fused = fuse(quantized)
    before, after = program_cost(quantized, shape), program_cost(fused, shape)
    assert replace(after, value_bytes=0) == replace(before, value_bytes=0)
    tokens, rows = shape.tokens, shape.logit_rows
    # written and read once each: two norms, attention, o and down, gate and up, glu; the final norm
    vanished = tokens * (2 * 64 + 64 + 2 * 64 + 2 * 96 + 96) + rows * 64
    assert before.value_bytes - after.value_bytes == 2 * 4 * vanished
    norm = next(op for op in fused.ops if op.kind == "fused.norm")
    assert op_cost(fused, norm, shape).value_bytes == tokens * 64 * (4 + 2)


def test_explain_is_made_of_the_operators():
    program = program_of("Qwen3", 2, 64, 4, 2, 32, 96, 100)
    rows, totals = explain_rows(program), explain_totals(program)
    assert [row.kind for row in rows] == [op.kind for op in program.ops]
    assert sum(row.token.flops for row in rows) == totals.token.flops
    assert sum(row.prompt.bytes for row in rows) == totals.prompt.bytes
    assert totals.assumed
    qkv = next(row for row in rows if row.kind == "fused.qkv")
    assert qkv.outs == (("0.q", "[T, 128]", "f32"), ("0.k", "[T, 64]", "f32"), ("0.v", "[T, 64]", "f32"))
    assert qkv.weights[0] == ("0.wq", (128, 64), "bf16")
    assert qkv.parts == ("linear", "linear", "linear")


def test_an_i8_cache_counts_its_scales():
    shape, bf16, _ = TIED["SmolLM2-135M"]
    program = program_of(*shape, tied=True, kv_dtype="i8")
    [group] = program.groups
    assert group.bytes_per_token == bf16 // 2 + 30 * 2 * 3 * 4
    writes = [op_cost(program, op, StepShape.decode(2, 100)).cache_bytes for op in program.ops if op.kind == "kv_write"]
    assert writes == [2 * 2 * 3 * (64 + 4)] * 30
    reads = [op for op in program.ops if op.kind == "fused.attention"]
    assert op_cost(program, reads[0], StepShape.decode(1, 100)).cache_bytes == 101 * 2 * 3 * (64 + 4)


def test_products_follow_what_is_eaten():
    program = program_of("Llama", 2, 64, 4, 2, 16, 96, 100)
    op = next(op for op in program.ops if op.kind == "fused.gate_up")
    assert op_product(program, op) == ("bf16", 1)
    for dtype, product in {"i8g32": ("int8", 1), "i15": ("int8", 2), "f32": ("f32", 1)}.items():
        eaten = replace(program.buffers[op.ins[0]], dtype=dtype)
        assert op_product(replace(program, buffers={**program.buffers, op.ins[0]: eaten}), op) == product
    attention = next(op for op in program.ops if op.kind == "fused.attention")
    assert op_product(program, attention) == ("bf16", 1)
    assert entry_bytes(program, attention) == 2 * 2 * 16 * 2 and entry_bytes(program, op) == 0
