"""Bytes of cache that released models take, from their configurations alone: a token, and a sequence with all of it.

The sizes are facts of the models: per layer and token 2 K d elements, or the latent and its rotated key, and the keys
of an index; layers that slide keep a window of tokens.
"""

from __future__ import annotations

import pytest

from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.lower import store_caches


def dense(architecture, layers, hidden, heads, kv_heads, head_dim=None, **more):
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "intermediate_size": 2 * hidden,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    } | more


def latent(architecture, layers, hidden, heads, q_rank, nope, value, **more):
    sizes = {"q_lora_rank": q_rank, "kv_lora_rank": 512, "qk_nope_head_dim": nope, "qk_rope_head_dim": 64}
    return dense(architecture, layers, hidden, heads, heads) | sizes | {"v_head_dim": value} | more


MIXTRAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
GPT_OSS = {"num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128}
LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
INDEX = {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
QWEN3_NEXT = {
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
GEMMA2 = {"sliding_window": 4096, "query_pre_attn_scalar": 256}
GEMMA3 = {"sliding_window": 1024, "sliding_window_pattern": 6, "query_pre_attn_scalar": 168}
# Model -> configuration, bytes a token in layers that keep all, and by window in those that slide.
MODELS = {
    "Llama-2-7B": (dense(LLAMA, 32, 4096, 32, 32), 524_288, {}),
    "Llama-2-70B": (dense(LLAMA, 80, 8192, 64, 8), 327_680, {}),
    "Llama-3.1-8B": (dense(LLAMA, 32, 4096, 32, 8), 131_072, {}),
    "Llama-3.1-405B": (dense(LLAMA, 126, 16384, 128, 8), 516_096, {}),
    "Llama-3.2-1B": (dense(LLAMA, 16, 2048, 32, 8), 32_768, {}),
    "Mistral-7B-v0.3": (dense("MistralForCausalLM", 32, 4096, 32, 8, sliding_window=None), 131_072, {}),
    "Mistral-7B-v0.1": (dense("MistralForCausalLM", 32, 4096, 32, 8, sliding_window=4096), 0, {4096: 131_072}),
    "Qwen2.5-0.5B": (dense(QWEN2, 24, 896, 14, 2, use_sliding_window=False), 12_288, {}),
    "Qwen2.5-7B": (dense(QWEN2, 28, 3584, 28, 4, use_sliding_window=False), 57_344, {}),
    "Qwen3-0.6B": (dense(QWEN3, 28, 1024, 16, 8, 128), 114_688, {}),
    "Qwen3-8B": (dense(QWEN3, 36, 4096, 32, 8, 128), 147_456, {}),
    "Mixtral-8x7B": (dense("MixtralForCausalLM", 32, 4096, 32, 8, **MIXTRAL), 131_072, {}),
    "Qwen3-30B-A3B": (dense("Qwen3MoeForCausalLM", 48, 2048, 32, 4, 128, **QWEN3_MOE), 98_304, {}),
    "Qwen3-235B-A22B": (dense("Qwen3MoeForCausalLM", 94, 4096, 64, 4, 128, **QWEN3_MOE), 192_512, {}),
    "Qwen3-Next-80B": (dense("Qwen3NextForCausalLM", 48, 2048, 16, 2, 256, **QWEN3_NEXT), 24_576, {}),
    "gpt-oss-20b": (dense("GptOssForCausalLM", 24, 2880, 64, 8, 64, **GPT_OSS), 24_576, {128: 24_576}),
    "gpt-oss-120b": (dense("GptOssForCausalLM", 36, 2880, 64, 8, 64, **GPT_OSS), 36_864, {128: 36_864}),
    "SmolLM2-135M": (dense(LLAMA, 30, 576, 9, 3), 23_040, {}),
    "SmolLM2-1.7B": (dense(LLAMA, 24, 2048, 32, 32), 196_608, {}),
    "OLMo-2-7B": (dense("Olmo2ForCausalLM", 32, 4096, 32, 32), 524_288, {}),
    "Gemma-2-9B": (dense("Gemma2ForCausalLM", 42, 3584, 16, 8, 256, **GEMMA2), 172_032, {4096: 172_032}),
    "Gemma-3-27B": (dense("Gemma3ForCausalLM", 62, 5376, 32, 16, 128, **GEMMA3), 81_920, {1024: 425_984}),
    "DeepSeek-V2": (latent("DeepseekV2ForCausalLM", 60, 5120, 128, 1536, 128, 128), 69_120, {}),
    "DeepSeek-V3": (latent("DeepseekV3ForCausalLM", 61, 7168, 128, 1536, 128, 128), 70_272, {}),
    "GLM-5.2": (
        latent("GlmMoeDsaForCausalLM", 78, 6144, 64, 2048, 192, 256, **INDEX)
        | {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        89_856 + 5_376,
        {},
    ),
    "GLM-5": (latent("GlmMoeDsaForCausalLM", 78, 6144, 64, 2048, 192, 256, **INDEX), 89_856 + 19_968, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_token_takes_what_the_table_says(name):
    config, whole, sliding = MODELS[name]
    program = store_caches(program_for(ModelConfig.from_mapping(config)), "bf16")
    assert sum(group.bytes_per_token for group in program.groups if group.rule == "full") == whole
    assert {group.window: group.bytes_per_token for group in program.groups if group.rule == "window"} == sliding


def test_a_long_context_of_glm():
    """A million tokens: 94.2 GB of latents and 5.6 GB of index keys, of 21 layers of 78."""
    program = store_caches(program_for(ModelConfig.from_mapping(MODELS["GLM-5.2"][0])), "bf16")
    [group] = program.groups
    sizes = {kind: sum(t.bytes for t in group.tensors if t.name.endswith(kind)) << 20 for kind in ("latents", "index")}
    assert {kind: round(size / 1e9, 1) for kind, size in sizes.items()} == {"latents": 94.2, "index": 5.6}
    full = [int(tensor.name.split(".")[0]) for tensor in group.tensors if tensor.name.endswith("index")]
    assert full == [0, 1, *range(2, 78, 4)] and len(full) == 21
    eight = store_caches(program, "i8").groups[0].bytes_per_token
    assert eight == 78 * (576 + 9 * 4) + 21 * (128 + 2 * 4)


def test_a_sequence_of_qwen3_next():
    """36 layers of 32 heads of 128 x 128 in float32, and 3 inputs of 8,192 channels, whatever the cache holds."""
    program = store_caches(program_for(ModelConfig.from_mapping(MODELS["Qwen3-Next-80B"][0])), "i8")
    assert [group.bytes_per_sequence for group in program.groups] == [36 * (2 * 2**20 + 96 * 2**10), 0]
