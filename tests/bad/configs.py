"""Configurations that cannot be served: name -> (changes to a good config.json, exit code, code, word of the line).

A change to None removes the field.
"""

CONFIGS = {
    # row 28 of tests/CASES.md
    "hidden_size -1": ({"hidden_size": -1}, 78, "bad_config", "hidden_size"),
    "no heads": ({"num_attention_heads": 0}, 78, "bad_config", "num_attention_heads"),
    "10^9 layers": ({"num_hidden_layers": 10**9}, 78, "bad_config", "num_hidden_layers"),
    "NaN rope_theta": ({"rope_theta": float("nan")}, 78, "bad_config", "rope_theta"),
    "infinite eps": ({"rms_norm_eps": float("inf")}, 78, "bad_config", "rms_norm_eps"),
    "rope_theta 0": ({"rope_theta": 0}, 78, "bad_config", "rope_theta"),
    "hidden_size text": ({"hidden_size": "48"}, 78, "bad_config", "hidden_size"),
    "hidden_size true": ({"hidden_size": True}, 78, "bad_config", "hidden_size"),
    "hidden_size 48.0": ({"hidden_size": 48.0}, 78, "bad_config", "hidden_size"),
    "no intermediate_size": ({"intermediate_size": None}, 78, "bad_config", "intermediate_size"),
    "vocab_size 2^60": ({"vocab_size": 2**60}, 78, "bad_config", "vocab_size"),
    "heads not shared": ({"num_key_value_heads": 2}, 78, "bad_config", "num_key_value_heads"),
    "odd head_dim": ({"head_dim": 15}, 78, "bad_config", "head_dim"),
    "eos id text": ({"eos_token_id": "end"}, 78, "bad_config", "eos_token_id"),
    "no architecture": ({"architectures": None}, 78, "bad_config", "architectures"),
    "two architectures": ({"architectures": ["A", "B"]}, 78, "bad_config", "architectures"),
    "unknown rope": ({"rope_scaling": {"rope_type": "su2"}}, 78, "unsupported", "rope_type"),
    "rope without factor": ({"rope_scaling": {"rope_type": "linear"}}, 78, "bad_config", "factor"),
    "rope is a list": ({"rope_scaling": [1]}, 78, "bad_config", "rope_scaling"),
    "other activation": ({"hidden_act": "relu6"}, 78, "unsupported", "hidden_act"),
    "quantized": ({"quantization_config": {"quant_method": "gptq"}}, 78, "unsupported", "quantization_config"),
}  # fmt: skip

# Found when the program is written and joined with the tensors, which `show` does not do.
PROGRAMS = {
    "unknown architecture": ({"architectures": ["MambaForCausalLM"]}, 78, "bad_config", "MambaForCausalLM"),
    "vocab_size of other rows": ({"vocab_size": 300}, 78, "bad_config", "vocab_size"),
    "hidden_size of other columns": ({"hidden_size": 64, "head_dim": 16}, 78, "bad_config", "hidden_size"),
    "more layers": ({"num_hidden_layers": 3}, 65, "missing_tensors", "model.layers.2"),
    "fewer layers": ({"num_hidden_layers": 1}, 65, "unknown_tensors", "model.layers.1"),
}  # fmt: skip

# config.json as text.
TEXTS = {
    "empty": "",
    "a list": "[1]",
    "no JSON": "nope",
    "cut": '{"a": ',
    "depth": '{"a":' * 20_000,
    "braces": "{" * 50_000,
}
