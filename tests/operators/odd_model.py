"""A tiny model of odd sizes for native sessions: head size 24, three KV heads, widths that no vector divides."""

from __future__ import annotations

import numpy as np

from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.weights.kinds import Tensor

VOCABULARY = 131
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 24,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
}


def odd_model(seed: int = 0, **changes):
    """(plain program, name -> tensor), matrices in bf16."""
    program = program_for(ModelConfig.from_mapping({**CONFIG, **changes}))
    rng = np.random.default_rng(seed)
    return program, {name: _tensor(rng, name, weight.shape) for name, weight in program.weights.items()}


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Tensor:
    noise = rng.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return Tensor("f32", shape, 1 + 0.3 * noise)
    scale = 0.5 if name == "embed" else 1.5 / shape[1] ** 0.5
    return Tensor("bf16", shape, to_bf16(noise * np.float32(scale)))
