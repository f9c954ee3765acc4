"""Tiny random checkpoints and their transformers twins: every weight matters, logits spread by at least one."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import torch
import transformers

from octavo.backends import executor_for
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.weights.catalogue import TensorHeader
from octavo.weights.kinds import Tensor
from octavo.weights.prepare import prepare
from octavo.weights.stack import Place, find_stack

SIZES = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MEMBERS = {
    "llama": ("LlamaConfig", {"attention_bias": False, "tie_word_embeddings": False}),
    "llama-biased": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 24, "tie_word_embeddings": False}),
    "mistral-window": ("MistralConfig", {"sliding_window": 8, "head_dim": 24, "tie_word_embeddings": False}),
    "qwen2-window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": False}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5, "no_rope_layer_interval": 2, "pad_token_id": 0}),
    "gemma": ("GemmaConfig", {"head_dim": 24, "num_hidden_layers": 3}),
    "gemma2": (
        "Gemma2Config",
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "query_pre_attn_scalar": 20,
            "sliding_window": 8,
            "attn_logit_softcapping": 2.0,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "query_pre_attn_scalar": 20,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 60.0},
            },
        },
    ),
    "mixtral": (
        "MixtralConfig",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False},
    ),
    "mixtral-window": (
        "MixtralConfig",
        {
            "num_hidden_layers": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 45,
            "sliding_window": 8,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 72,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2moe-sparse": (
        "Qwen2MoeConfig",
        {
            "num_hidden_layers": 6,
            "num_experts": 6,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 33,
            "shared_expert_intermediate_size": 64,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 3,
            "qkv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 32,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3moe-biased": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "norm_topk_prob": False,
            "attention_bias": True,
            "mlp_only_layers": [1],
            "tie_word_embeddings": False,
        },
    ),
    "qwen3next": (
        "Qwen3NextConfig",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 20,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "qwen3next-dense": (
        "Qwen3NextConfig",
        {
            "num_hidden_layers": 5,
            "layer_types": ["full_attention", *["linear_attention"] * 4],
            "head_dim": 16,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 48,
            "linear_conv_kernel_dim": 3,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [0, 1, 2, 4],
            "norm_topk_prob": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": ("GPT2Config", {"n_inner": 112, "tie_word_embeddings": False}),
    "gpt2-gelu": (
        "GPT2Config",
        {"n_inner": 80, "n_head": 2, "n_layer": 2, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
    "gpt-oss": (
        "GptOssConfig",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "intermediate_size": 48,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": {**YARN, "rope_theta": 500.0, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
            "tie_word_embeddings": False,
        },
    ),
    "gpt-oss-odd": (
        "GptOssConfig",
        {
            "num_hidden_layers": 3,
            "head_dim": 24,
            "intermediate_size": 45,
            "num_local_experts": 9,
            "num_experts_per_tok": 4,
            "sliding_window": 5,
            "swiglu_limit": 1.5,
            "swiglu_alpha": 1.1,
            "tie_word_embeddings": False,
        },
    ),
    "olmo2": ("Olmo2Config", {"tie_word_embeddings": False}),
    "olmo3": (
        "Olmo3Config",
        {
            "num_hidden_layers": 5,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "rope_theta": 500.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 40,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
INDEXED = LATENT | {"index_n_heads": 9, "index_head_dim": 32, "index_topk": 24}
MEMBERS |= {
    "deepseek-v2": ("DeepseekV2Config", LATENT | {"topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": ("DeepseekV2Config", LATENT | {"q_lora_rank": None, "attention_bias": True}),
    "deepseek-v3": ("DeepseekV3Config", LATENT),
    "deepseek-v32": ("DeepseekV32Config", INDEXED | {"first_k_dense_replace": 9}),
    "glm-dsa": (
        "GlmMoeDsaConfig",
        INDEXED
        | {"num_hidden_layers": 4, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1}
        | {"index_topk_freq": 2, "index_skip_topk_offset": 1},
    ),
}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": YARN,
    "yarn-factor": dict(YARN, attention_factor=1.3),
    "yarn-mscale": dict(YARN, mscale=0.7, mscale_all_dim=1.2),
    "yarn-mscale-alike": dict(YARN, mscale=0.8, mscale_all_dim=0.8),
    "yarn-whole": dict(YARN, truncate=False, beta_fast=16.0, beta_slow=2.0),
}


@lru_cache(maxsize=4)
def twin(member: str, rope: str = "default"):
    """(transformers model in float32, its config.json as a mapping), seeded by the member."""
    name, extra = MEMBERS[member]
    parameters = dict(ROPES[rope], rope_theta=500.0)
    config = getattr(transformers, name)(**{**SIZES, "rope_parameters": parameters, **extra})
    torch.manual_seed(sum(member.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config, **EAGER).float().eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            values = as_values(weight_name, weight.shape)
            if name.startswith("Gemma"):  # offsets from 1, and an embedding that is scaled up
                values = values - 1 if "norm" in weight_name else values / 4 if "embed" in weight_name else values
            if name.startswith("Qwen3Next"):  # offsets from 1 but for one norm; memories of some tokens and of many
                values = values - 1 if "norm" in weight_name and "linear_attn" not in weight_name else values
                values = 4 * values - 7 if "A_log" in weight_name else values
            weight.copy_(values)
        for weight_name, buffer in model.named_buffers():
            if weight_name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape) * 0.3)
    mapping = json.loads(config.to_json_string())
    return model, {**mapping, "architectures": [type(model).__name__]}


def as_values(name: str, shape: torch.Size) -> torch.Tensor:
    noise = torch.randn(shape)
    if name.endswith("bias"):
        return noise * 0.5
    if name.endswith("sinks"):
        return noise * 2
    if len(shape) == 1:
        return 1 + 0.3 * noise
    if "embed" in name or ".wte." in name or ".wpe." in name:
        return noise * 0.5
    return noise * 1.5 / shape[1] ** 0.5


def tensors_of(model, program) -> dict[str, Tensor]:
    """The program's weights out of the twin's state, by their names in a checkpoint."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    headers = {name: TensorHeader(name, array.shape, "F32", array.nbytes) for name, array in state.items()}
    return {name: _tensor(weight, state, headers) for name, weight in program.weights.items()}


def _tensor(weight, state, headers) -> Tensor:
    for source in (weight.sources["hf"], *weight.others, weight.sources["hf"].partition(".")[2]):
        place = Place((source,), headers[source]) if source in state else find_stack(headers, source)
        if place is not None:
            arrays = [np.ascontiguousarray(state[name]) for name in place.names]
            array = arrays[0] if len(arrays) == 1 else np.stack(arrays)
            held = prepare(Tensor("f32", array.shape, array), (*place.prep, *weight.prep))
            return Tensor("f32", held.shape, np.ascontiguousarray(held.data))
    raise KeyError(weight.sources["hf"])


def stepper_of(model, mapping, *, dtype="auto", **options):
    """A session of the reference executor over the twin's weights."""
    from stepping import Stepper

    program = program_for(ModelConfig.from_mapping(mapping))
    return Stepper(executor_for("reference", dtype), program, tensors_of(model, program), **options)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, SIZES["vocab_size"], (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def logits_of(model, tokens) -> np.ndarray:
    return model(torch.tensor([tokens])).logits[0].numpy()


@torch.no_grad()
def greedy_of(model, tokens, count) -> list[int]:
    out = model.generate(
        torch.tensor([tokens]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(tokens) :].tolist()
