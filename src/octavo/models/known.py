"""Configurations of public models by name, as their config.json states them: to plan for what is not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def _dense(
    architecture: str, layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    } | more


def _latent(architecture: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any) -> Any:
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return _dense(architecture, layers, hidden, heads, heads, inner, vocabulary) | sizes | more


def _experts(count: int, used: int, inner: int, **more: Any) -> dict[str, Any]:
    return {"num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": inner} | more


_SMALL = {"tie_word_embeddings": True}
_BIASED = {"use_sliding_window": False}
_Q3 = {"head_dim": 128}
_GPT_OSS = {
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "attention_bias": True,
    "quantization_config": {"quant_method": "mxfp4"},
}
_DEEPSEEK = {
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
_GLM = {
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "max_position_embeddings": 1048576,
}
_QWEN3_NEXT = _experts(512, 10, 512, shared_expert_intermediate_size=512) | {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144,
}
_GEMMA3 = {
    "head_dim": 128,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 168,
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
}

KNOWN: Mapping[str, Config] = {
    "smollm2-135m": _dense("Llama", 30, 576, 9, 3, 1536, 49152, **_SMALL, max_position_embeddings=8192),
    "smollm2-1.7b": _dense("Llama", 24, 2048, 32, 32, 8192, 49152, **_SMALL, max_position_embeddings=8192),
    "llama-2-7b": _dense("Llama", 32, 4096, 32, 32, 11008, 32000, max_position_embeddings=4096),
    "llama-2-70b": _dense("Llama", 80, 8192, 64, 8, 28672, 32000, max_position_embeddings=4096),
    "llama-3.2-1b": _dense("Llama", 16, 2048, 32, 8, 8192, 128256, **_SMALL),
    "llama-3.2-3b": _dense("Llama", 28, 3072, 24, 8, 8192, 128256, **_SMALL),
    "llama-3.1-8b": _dense("Llama", 32, 4096, 32, 8, 14336, 128256),
    "llama-3.1-70b": _dense("Llama", 80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": _dense("Llama", 126, 16384, 128, 8, 53248, 128256),
    "mistral-7b": _dense("Mistral", 32, 4096, 32, 8, 14336, 32768, sliding_window=None, max_position_embeddings=32768),
    "mixtral-8x7b": _dense(
        "Mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=32768,
    ),
    "qwen2.5-0.5b": _dense("Qwen2", 24, 896, 14, 2, 4864, 151936, **_SMALL, **_BIASED, max_position_embeddings=32768),
    "qwen2.5-7b": _dense("Qwen2", 28, 3584, 28, 4, 18944, 152064, **_BIASED, max_position_embeddings=32768),
    "qwen3-0.6b": _dense("Qwen3", 28, 1024, 16, 8, 3072, 151936, **_SMALL, **_Q3, max_position_embeddings=40960),
    "qwen3-8b": _dense("Qwen3", 36, 4096, 32, 8, 12288, 151936, **_Q3, max_position_embeddings=40960),
    "qwen3-30b-a3b": _dense(
        "Qwen3Moe", 48, 2048, 32, 4, 6144, 151936, **_Q3, **_experts(128, 8, 768), max_position_embeddings=40960
    ),
    "qwen3-235b-a22b": _dense(
        "Qwen3Moe", 94, 4096, 64, 4, 12288, 151936, **_Q3, **_experts(128, 8, 1536), max_position_embeddings=40960
    ),
    "qwen3-next-80b": _dense("Qwen3Next", 48, 2048, 16, 2, 5120, 151936) | _QWEN3_NEXT,
    "gpt-oss-20b": _dense("GptOss", 24, 2880, 64, 8, 2880, 201088) | _GPT_OSS | {"num_local_experts": 32},
    "gpt-oss-120b": _dense("GptOss", 36, 2880, 64, 8, 2880, 201088) | _GPT_OSS | {"num_local_experts": 128},
    "olmo-2-7b": _dense("Olmo2", 32, 4096, 32, 32, 11008, 100352, max_position_embeddings=4096),
    "gemma-2-9b": _dense("Gemma2", 42, 3584, 16, 8, 14336, 256000, **_SMALL) | {
        "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256, "max_position_embeddings": 8192,
        "hidden_act": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "gemma-3-27b": _dense("Gemma3", 62, 5376, 32, 16, 21504, 262208, **_SMALL) | _GEMMA3,
    "deepseek-v3": _latent("DeepseekV3", 61, 7168, 128, 18432, 129280, **_DEEPSEEK),
    "glm-5.2": _latent(
        "GlmMoeDsa", 78, 6144, 64, 12288, 154880, **_GLM, index_topk_freq=4, index_skip_topk_offset=3,
        index_share_for_mtp_iteration=True,
    ),
}  # fmt: skip
