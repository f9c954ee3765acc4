"""The two models of the suite: SmolLM2 from the cache, and a tiny random one whose sizes fit no tile."""

import json

import pytest
from safetensors.numpy import save_file
from tiny_model import random_tensors

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
    save_file(random_tensors(ODD, 7, embedding=0.3), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(ODD))
    return str(folder)


def smollm2():
    try:
        return str(fetch.resolve("smollm2:135m"))
    except OctavoError as error:
        pytest.skip(f"needs the model: {error.message}")
