"""The two models of the suite: SmolLM2 from the cache, and a tiny random one whose sizes fit no tile."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import OctavoError
from octavo.weights import fetch

# Odd on purpose: no width is a multiple of 32, the head size of no vector, the vocabulary of no panel.
ODD = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 211,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_odd(folder):
    """A folder of safetensors with random weights, scaled so that logits spread."""
    rng = np.random.default_rng(7)
    d, f, h, k, size = 72, 100, 6, 2, 20

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * 1.5 / columns**0.5).astype(np.float32)

    def norm():
        return (1 + 0.2 * rng.standard_normal(d)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": (rng.standard_normal((ODD["vocab_size"], d)) * 0.3).astype(np.float32),
        "model.norm.weight": norm(),
    }
    for layer in range(ODD["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": norm(),
            at + "post_attention_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": matrix(h * size, d),
            at + "self_attn.k_proj.weight": matrix(k * size, d),
            at + "self_attn.v_proj.weight": matrix(k * size, d),
            at + "self_attn.o_proj.weight": matrix(d, h * size),
            at + "mlp.gate_proj.weight": matrix(f, d),
            at + "mlp.up_proj.weight": matrix(f, d),
            at + "mlp.down_proj.weight": matrix(d, f),
        }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(ODD))
    return str(folder)


def smollm2():
    try:
        return str(fetch.resolve("smollm2:135m"))
    except OctavoError as error:
        pytest.skip(f"needs the model: {error.message}")
