"""Bytes that a token takes in the cache, from the configuration alone, for the published sizes of every family."""

import pytest

from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.lower import bind, default_kinds, store_caches


def config(architecture, layers, hidden, heads, kv_heads, head, **more):
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        **more,
    }


MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
GPT_OSS = {"num_local_experts": 8, "num_experts_per_tok": 4, "sliding_window": 128}
# Configuration -> bytes a token in bf16, and those of them that stop growing, with their window.
PUBLISHED = {
    "Mixtral-8x7B": (config("MixtralForCausalLM", 32, 4096, 32, 8, 128, num_local_experts=8), 131_072, 0, 0),
    "Qwen3-30B-A3B": (config("Qwen3MoeForCausalLM", 48, 2048, 32, 4, 128, **MIXTURE), 98_304, 0, 0),
    "Qwen3-235B-A22B": (config("Qwen3MoeForCausalLM", 94, 4096, 64, 4, 128, **MIXTURE), 192_512, 0, 0),
    "gpt-oss-20b": (config("GptOssForCausalLM", 24, 2880, 64, 8, 64, **GPT_OSS), 49_152, 24_576, 128),
    "gpt-oss-120b": (config("GptOssForCausalLM", 36, 2880, 64, 8, 64, **GPT_OSS), 73_728, 36_864, 128),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_a_token(name):
    stated, whole, windowed, window = PUBLISHED[name]
    program = program_for(ModelConfig.from_mapping({"num_experts_per_tok": 2, **stated}))
    groups = store_caches(bind(program, default_kinds(program)), "bf16").groups
    assert sum(group.bytes_per_token for group in groups) == whole
    assert sum(group.bytes_per_token for group in groups if group.rule == "window") == windowed
    assert {group.window for group in groups if group.rule == "window"} == ({window} if window else set())
