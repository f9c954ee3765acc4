"""Rotary frequencies against transformers' own functions, and the rules that fix what depends on the length."""

import math

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.models.rope import frequencies
from octavo.rope_spec import RopeSpec

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": 16,
}


def both(parameters, max_position=32768, theta=1e6):
    """(ours, theirs): each inv_freq and factor."""
    theirs = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=max_position,
        rope_parameters={**parameters, "rope_theta": theta},
    )
    config = ModelConfig.from_mapping(
        {**BASE, "max_position_embeddings": max_position, "rope_theta": theta, "rope_scaling": parameters}
    )
    ours = frequencies(config.rope, config.head_dim, config.max_position, 1e4)
    return ours, ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs), config


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 8.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        YARN,
        {**YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
        {**YARN, "attention_factor": 1.25},
        {**YARN, "truncate": False, "beta_fast": 24.0, "beta_slow": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
    ],
    ids=lambda parameters: "-".join(str(value) for value in parameters.values()),
)
def test_equal_to_transformers(parameters):
    (inv_freq, factor), (want, want_factor), _ = both(parameters)
    got = torch.tensor(inv_freq, dtype=torch.float32)
    assert got.double().tolist() == list(inv_freq)  # exact in float32
    torch.testing.assert_close(got, want, rtol=5e-7, atol=0)
    assert factor == pytest.approx(want_factor, rel=1e-12)


def test_yarn_mscale_pair_cancels_and_length_is_not_scaled_twice():
    (_, factor), _, config = both({**YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, max_position=131072)
    assert factor == 1.0
    assert config.max_position == 131072
    (_, factor), _, config = both(YARN)
    assert factor == pytest.approx(0.1 * math.log(4) + 1)
    assert config.max_position == 32768


def test_yarn_on_a_file_that_states_the_trained_length():
    """Served length is the scaled one when max_position_embeddings is the trained one."""
    (_, _), _, config = both(YARN, max_position=8192)
    assert config.max_position == 32768


def test_dynamic_is_fixed_at_load_and_finite_below_the_trained_length():
    spec = RopeSpec(type="dynamic", theta=1e4, factor=2.0, original_max_position=4096)
    short, _ = frequencies(spec, 128, 16384, 1e4, max_model_len=1024)
    plain, _ = frequencies(RopeSpec(theta=1e4), 128, 16384, 1e4)
    served, _ = frequencies(spec, 128, 16384, 1e4, max_model_len=8192)
    assert short == plain
    assert served[-1] < plain[-1]
    assert all(math.isfinite(freq) for freq in served)


def test_longrope_takes_the_list_of_the_served_length():
    short, long = [1.0 + i / 100 for i in range(64)], [2.0 + i / 10 for i in range(64)]
    theirs = Phi3Config(
        hidden_size=256,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        original_max_position_embeddings=4096,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "rope_theta": 1e4,
            "original_max_position_embeddings": 4096,
        },
    )
    spec = RopeSpec(
        type="longrope", theta=1e4, original_max_position=4096, short_factor=tuple(short), long_factor=tuple(long)
    )
    for length in (4096, 8192):
        inv_freq, factor = frequencies(spec, 128, 16384, 1e4, max_model_len=length)
        want, want_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, seq_len=length)
        torch.testing.assert_close(torch.tensor(inv_freq), want, rtol=5e-7, atol=0)
        assert factor == pytest.approx(want_factor)
    with pytest.raises(ConfigError, match="short_factor"):
        frequencies(RopeSpec(type="longrope", original_max_position=4096), 128, 4096, 1e4)


def test_divisors_from_the_file():
    divisors = tuple(1.0 + i for i in range(64))
    got, _ = frequencies(RopeSpec(freq_factors=divisors), 128, 4096, 5e5)
    plain, _ = frequencies(RopeSpec(), 128, 4096, 5e5)
    assert list(got) == pytest.approx([freq / divisor for freq, divisor in zip(plain, divisors, strict=True)], rel=1e-7)
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight"):
        frequencies(RopeSpec(freq_factors=divisors[1:]), 128, 4096, 5e5)
