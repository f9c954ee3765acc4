"""One small configuration a family, sizes odd on purpose, with random weights: for the suite over families."""

import json

import numpy as np
from safetensors.numpy import save_file

from exactness.models import ODD
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for

LATENT = {
    **ODD,
    "kv_lora_rank": 96,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 44,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "gemma2": {
        **ODD,
        "architectures": ["Gemma2ForCausalLM"],
        "num_hidden_layers": 2,
        "sliding_window": 40,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 8.0,
        "tie_word_embeddings": False,
    },
    "gemma3": {
        **ODD,
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": 40,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 20,
        "rope_local_base_freq": 100.0,
        "tie_word_embeddings": False,
    },
    "mixtral": {
        **ODD,
        "architectures": ["MixtralForCausalLM"],
        "num_hidden_layers": 2,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 40,
        "tie_word_embeddings": False,
    },
    "qwen2moe": {
        **ODD,
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 44,
        "shared_expert_intermediate_size": 60,
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
        "tie_word_embeddings": False,
    },
    "qwen3-next": {
        **ODD,
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "partial_rotary_factor": 0.5,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 20,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 4,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 44,
        "shared_expert_intermediate_size": 60,
        "mlp_only_layers": [1],
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 72,
        "n_head": 6,
        "n_layer": 3,
        "n_inner": 100,
        "n_positions": 1024,
        "vocab_size": 211,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    },
    "gpt-oss": {
        **ODD,
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 2,
        "intermediate_size": 44,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 40,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "deepseek": {
        **LATENT,
        "architectures": ["DeepseekV3ForCausalLM"],
        "q_lora_rank": None,
        "num_nextn_predict_layers": 1,
    },
    "glm-dsa": {
        **LATENT,
        "architectures": ["GlmMoeDsaForCausalLM"],
        "q_lora_rank": 40,
        "index_n_heads": 9,
        "index_head_dim": 48,
        "index_topk": 24,
        "indexer_types": ["full", "shared", "full"],
    },
    "olmo2": {**ODD, "architectures": ["Olmo2ForCausalLM"], "tie_word_embeddings": False},
}


def stored_shape(weight):
    """In the file, before its preparation. Of a tensor that is cut, the last part is the one that counts."""
    shape = list(weight.shape)
    for name, *numbers in reversed(weight.prep):
        if name == "transpose":
            shape[-2:] = shape[:-3:-1]
        elif name in ("rows", "columns"):
            begin, step, count = numbers
            shape[-2 if name == "rows" and len(shape) > 1 else -1] = begin + step * (count - 1) + 1
        elif name == "transpose_heads":
            shape = [numbers[0] * shape[1], shape[0] // numbers[0]]
    return tuple(shape)


def shapes_of(program):
    """Tensor of the file -> its shape, and the weight that it is or is part of. Several may be rows of its heads."""
    shapes = {}
    for weight in program.weights.values():
        source, (rows, *rest) = weight.sources["hf"], stored_shape(weight)
        if any(name == "head_rows" for name, *_ in weight.prep):
            rows += shapes.get(source, ((0,), ""))[0][0]
        shapes[source] = (rows, *rest), weight.name
    return shapes


ENCODER = {
    "architectures": ["BertModel"],
    "vocab_size": 211,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 256,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


def write_encoder(folder, **fields):
    return write({**ENCODER, **fields}, folder, "encoder")


def write_family(name, folder):
    return write(FAMILIES[name], folder, name)


def write(config, folder, name):
    """A folder of safetensors: what the family's program names, matrices scaled so that logits spread."""
    rng = np.random.default_rng(sum(name.encode()))
    program = program_for(ModelConfig.from_mapping(config))
    tensors = {f"{prefix}enorm.weight": np.ones(8, np.float32) for prefix in program.spare if "model" in prefix}
    for source, (shape, weight) in shapes_of(program).items():
        values = rng.standard_normal(shape)
        if len(shape) == 1:
            values = 0.2 * values + (not source.endswith("bias"))
            values -= 4 * source.endswith("A_log")  # a state that lasts
        else:
            values *= 0.3 if weight in ("embed", "positions") else 1.5 / shape[-1] ** 0.5
        values = values.astype(np.float32)
        stacked = "{e}" in source
        for e, one in enumerate(values if stacked else (values,)):
            tensors[source.replace("{e}", str(e))] = one
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
