"""One small configuration a family, sizes odd on purpose, with random weights: for the suite over families."""

import json

import numpy as np
from safetensors.numpy import save_file

from exactness.models import ODD
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for

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
    "olmo2": {**ODD, "architectures": ["Olmo2ForCausalLM"], "tie_word_embeddings": False},
}


def write_family(name, folder):
    """A folder of safetensors: what the family's program names, matrices scaled so that logits spread."""
    config = FAMILIES[name]
    rng = np.random.default_rng(sum(name.encode()))
    tensors = {}
    for weight in program_for(ModelConfig.from_mapping(config)).weights.values():
        values = rng.standard_normal(weight.shape)
        if len(weight.shape) == 1:
            values = 0.2 * values + (not weight.sources["hf"].endswith("bias"))
        else:
            values *= 0.3 if "embed" in weight.name else 1.5 / weight.shape[-1] ** 0.5
        tensors[weight.sources["hf"]] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
