"""config.json for the model of a GGUF file: the other way of ModelConfig.from_mapping, for members of families whose
weights mean the same in both formats. Whoever uses it compares the two programs (`same_model`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.program.ir import Program

# general.architecture -> (architectures, model_type)
CLASSES: Mapping[str, tuple[str, str]] = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3"),
}


def config_json(config: ModelConfig) -> dict[str, Any]:
    """Raises ConfigError for a model that no class of CLASSES stands for."""
    known = CLASSES.get(config.architecture)
    if known is None or config.experts or config.latent or config.recurrence or config.rope.freq_factors:
        what = "experts" if known and config.experts else "rotary factors of its own" if known else "its architecture"
        raise ConfigError(
            f"{config.architecture}: a GGUF file with {what} is not written as a folder", code="unsupported"
        )
    name, kind = known
    rope: dict[str, Any] = {"rope_type": config.rope.type}
    if config.rope.type != "default":
        rope["factor"] = config.rope.factor
        rope["original_max_position_embeddings"] = config.rope.original_max_position
        slopes = {"beta_fast": config.rope.beta_fast, "beta_slow": config.rope.beta_slow}
        rope |= {name: value for name, value in slopes.items() if value is not None}
    stated = {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": None if config.rope.type == "default" else rope,
        "hidden_act": "silu",
        "attention_bias": bool(config.attention_bias),
        "mlp_bias": bool(config.mlp_bias),
        "tie_word_embeddings": bool(config.tie_embeddings),
        "bos_token_id": config.bos_id,
        "eos_token_id": [*config.eos_ids],
        "torch_dtype": "bfloat16",
    }
    return {name: value for name, value in stated.items() if value not in (None, [])}


def same_model(one: Program, other: Program) -> bool:
    """Whether both compute the same of weights that have the same names and shapes."""
    shapes = [{name: weight.shape for name, weight in program.weights.items()} for program in (one, other)]
    return one.ops == other.ops and one.groups == other.groups and shapes[0] == shapes[1]
