"""What a checkpoint says: both generations of config.json, GGUF metadata, and wrong values that name their field."""

import math
import sys

import pytest

from octavo.errors import ConfigError
from octavo.fields import Fields
from octavo.model_config import ModelConfig
from octavo.model_experts import experts_from_mapping
from octavo.model_recurrence import recurrence_from_gguf, recurrence_from_mapping
from octavo.models import deepseek
from octavo.models.registry import ROWS, program_for

GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": [2, 7],
    "bos_token_id": 1,
}
GGUF = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 96,
    "llama.context_length": 512,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
TENSORS = {"token_embd.weight": (100, 64)}


def test_two_generations_say_the_same():
    old = ModelConfig.from_mapping(
        {**GOOD, "torch_dtype": "bfloat16", "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    )
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    new = ModelConfig.from_mapping({**GOOD, "dtype": "bfloat16", "rope_parameters": parameters})
    assert old == new
    assert (old.rope.type, old.rope.theta, old.rope.factor) == ("linear", 5e5, 2.0)
    assert (old.head_dim, old.eos_ids, old.bos_id, old.warnings) == (16, (2, 7), 1, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", -1),
        ("hidden_size", 64.0),
        ("hidden_size", None),
        ("num_attention_heads", 0),
        ("num_attention_heads", True),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", 10**9),
        ("head_dim", 7),
        ("vocab_size", "100"),
        ("max_position_embeddings", 2**40),
        ("intermediate_size", 0),
        ("rms_norm_eps", math.nan),
        ("rope_theta", math.nan),
        ("rope_theta", -1.0),
        ("eos_token_id", "</s>"),
        ("no_rope_layers", [1]),
        ("architectures", []),
        ("tie_word_embeddings", "yes"),
        ("layer_types", ["full_attention"]),
        ("rope_scaling", 3),
    ],
)
def test_a_wrong_value_names_its_field(field, value):
    with pytest.raises(ConfigError, match=field) as caught:
        ModelConfig.from_mapping({**GOOD, field: value})
    assert caught.value.exit_code == 78
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize("factor", [None, 0, math.inf, "4"])
def test_a_scaled_rope_needs_its_factor(factor):
    with pytest.raises(ConfigError, match="factor"):
        ModelConfig.from_mapping({**GOOD, "rope_scaling": {"rope_type": "linear", "factor": factor}})


def test_hidden_size_that_heads_do_not_divide_needs_head_dim():
    with pytest.raises(ConfigError, match="head_dim"):
        ModelConfig.from_mapping({**GOOD, "hidden_size": 66})
    assert ModelConfig.from_mapping({**GOOD, "hidden_size": 66, "head_dim": 16}).head_dim == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "relu"),
        ("use_bidirectional_attention", True),
        ("rope_scaling", {"rope_type": "su", "factor": 2.0}),
        ("layer_types", ["linear_attention", "full_attention"]),
        ("rope_parameters", {"chunked_attention": {"rope_theta": 1e4}}),
        ("rope_parameters", {"full_attention": {"rope_theta": 1e4}, "rope_theta": 1e4}),
    ],
)
def test_what_no_operator_computes_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=r"rope_type|" + field) as caught:
        ModelConfig.from_mapping({**GOOD, field: value})
    assert caught.value.code == "unsupported"


def test_code_in_a_checkpoint_is_ignored_with_a_warning(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("nothing may be imported or opened")

    told = {**GOOD, "auto_map": {"AutoModel": "evil.Model"}, "trust_remote_code": True}
    before = set(sys.modules)
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", forbidden)
        patch.setattr("socket.socket", forbidden)
        config = ModelConfig.from_mapping({**told, "_attn_implementation_internal": "evil/kernel"})
    assert set(sys.modules) == before
    assert [warning.split()[0] for warning in config.warnings] == [
        "auto_map",
        "trust_remote_code",
        "_attn_implementation_internal",
    ]
    assert program_for(config).exports == ("logits",)


def test_unknown_architecture():
    config = ModelConfig.from_mapping({**GOOD, "architectures": ["MambaForCausalLM"]})
    with pytest.raises(ConfigError, match="MambaForCausalLM") as caught:
        program_for(config)
    assert caught.value.exit_code == 78


def test_gguf_metadata():
    config = ModelConfig.from_gguf(GGUF, TENSORS)
    program = program_for(config)
    assert (config.vocab_size, config.tie_embeddings, config.attention_bias) == (100, True, False)
    assert (config.eos_ids, config.bos_id, config.rope.theta) == ((2,), 1, 1e5)
    assert program.weights["0.wq"].prep == (("unpermute_rope", 4),)
    assert program.weights["0.wk"].prep == (("unpermute_rope", 2),)
    assert program.weights["0.wv"].prep == ()
    assert program.weights["1.wdown"].sources["gguf"] == "blk.1.ffn_down.weight"
    assert "head" not in program.weights


def test_gguf_of_a_member_that_is_half_split():
    metadata = {key.replace("llama", "qwen2"): value for key, value in GGUF.items()}
    tensors = {**TENSORS, "output.weight": (100, 64), "blk.0.attn_q.bias": (64,)}
    program = program_for(ModelConfig.from_gguf({**metadata, "general.architecture": "qwen2"}, tensors))
    assert program.weights["0.wq"].prep == ()
    assert program.weights["0.bq"].sources["gguf"] == "blk.0.attn_q.bias"
    assert "head" in program.weights


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", None),
        ("llama.block_count", 0),
        ("llama.attention.head_count", [4, 4]),
        ("llama.context_length", None),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.rope.freq_base", math.inf),
    ],
)
def test_a_wrong_gguf_value_names_its_key(key, value):
    with pytest.raises(ConfigError, match=key):
        ModelConfig.from_gguf({**GGUF, key: value}, TENSORS)


@pytest.mark.parametrize("key", ["rope.scaling.attn_factor"])
def test_gguf_keys_that_change_the_result_are_refused(key):
    with pytest.raises(ConfigError, match=key) as caught:
        ModelConfig.from_gguf({**GGUF, f"llama.{key}": 8}, TENSORS)
    assert caught.value.code == "unsupported"


def test_experts_of_a_family_that_has_none_are_refused():
    stated = {key.replace("llama.", "qwen3."): value for key, value in GGUF.items()}
    stated |= {"general.architecture": "qwen3", "qwen3.expert_count": 8}
    with pytest.raises(ConfigError, match="expert_used_count"):
        ModelConfig.from_gguf(stated, TENSORS)
    config = ModelConfig.from_gguf({**stated, "qwen3.expert_used_count": 2}, TENSORS)
    with pytest.raises(ConfigError, match="Qwen3 with experts") as caught:
        program_for(config)
    assert caught.value.code == "unsupported"


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def test_what_a_file_states_about_experts():
    spec = experts_from_mapping({**EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, 6)
    assert (spec.count, spec.k, spec.width, spec.shared_width) == (8, 2, 24, 0)
    assert spec.sparse == (False, True, False, False, False, True)
    assert (spec.normalize, spec.scale, spec.scoring, spec.groups) == (None, None, None, None)
    stated = {
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "noaux_tc",
    }
    spec = experts_from_mapping(
        {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 8, "n_shared_experts": 3}
        | {"routed_scaling_factor": 2.5, "first_k_dense_replace": 2, **stated},
        4,
    )
    assert (spec.count, spec.shared_width, spec.sparse) == (16, 24, (False, False, True, True))
    assert (spec.normalize, spec.scale, spec.scoring) == (True, 2.5, "sigmoid")
    assert (spec.groups, spec.top_groups, spec.method) == (4, 2, "noaux_tc")
    assert experts_from_mapping({"num_experts": 0}, 2) is None
    assert experts_from_mapping({**EXPERTS, "mlp_layer_types": ["dense", "sparse"]}, 2).sparse == (False, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_experts", -1),
        ("num_experts_per_tok", "two"),
        ("moe_intermediate_size", 0),
        ("mlp_only_layers", "all"),
        ("mlp_layer_types", ["odd"] * 2),
        ("scoring_func", "tanh"),
        ("moe_layer_freq", 2),
        ("norm_topk_prob", 1),
    ],
)
def test_a_wrong_value_about_experts_names_its_field(name, value):
    with pytest.raises(ConfigError, match=name):
        experts_from_mapping({**EXPERTS, name: value}, 2)


def test_gguf_yarn():
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 16.0}
    told = {**GGUF, **{f"llama.rope.scaling.{name}": value for name, value in scaling.items()}}
    config = ModelConfig.from_gguf(told, TENSORS)
    assert (config.rope.type, config.rope.factor, config.rope.original_max_position) == ("yarn", 4.0, 128)
    assert (config.rope.beta_fast, config.max_position) == (16.0, 512)
    with pytest.raises(ConfigError, match=r"rope\.scaling\.factor"):
        ModelConfig.from_gguf({**told, "llama.rope.scaling.factor": None}, TENSORS)


def test_gguf_frequency_divisors_are_needed_where_the_file_has_them():
    tensors = {**TENSORS, "rope_freqs.weight": (8,)}
    with pytest.raises(ConfigError, match="rope_freqs"):
        ModelConfig.from_gguf(GGUF, tensors)
    config = ModelConfig.from_gguf(GGUF, tensors, [2.0] * 8)
    angles = next(op for op in program_for(config).ops if op.kind == "rope_angles")
    assert angles.attrs["inv_freq"][0] == 0.5


def test_windows():
    def windows(**fields):
        return ModelConfig.from_mapping({**GOOD, **fields}).windows

    def window(**fields):
        return ModelConfig.from_mapping({**GOOD, **fields}).window

    assert windows() is None and window() is None
    assert windows(sliding_window=None) is None and window(sliding_window=None) == 0
    assert windows(sliding_window=8) is None and window(sliding_window=8) == 8
    assert windows(sliding_window=8, max_window_layers=1) == (0, 0)  # unused unless the file says so
    assert windows(layer_types=["full_attention"] * 2) == (0, 0)
    assert windows(sliding_window=8, use_sliding_window=False, max_window_layers=1) == (0, 0)
    assert windows(sliding_window=8, use_sliding_window=True, max_window_layers=1) == (0, 8)
    assert windows(sliding_window=8, layer_types=["sliding_attention", "full_attention"]) == (8, 0)


def group_names(program):
    return {cache: program.groups[number].name for cache, number in program.cache_group.items()}


def test_gguf_windows():
    def groups(arch="llama", **keys):
        told = {key.replace("llama", arch): value for key, value in GGUF.items()}
        told |= {f"{arch}.attention.{key}": value for key, value in keys.items()}
        names = group_names(program_for(ModelConfig.from_gguf({**told, "general.architecture": arch}, TENSORS)))
        return [names[f"{layer}.k_cache"] for layer in range(2)]

    assert groups() == groups(sliding_window=0) == ["full", "full"]
    assert groups(sliding_window=16) == groups(sliding_window=16, sliding_window_pattern=0) == ["window.16"] * 2
    assert groups(sliding_window=16, sliding_window_pattern=2) == ["window.16", "full"]
    assert groups(sliding_window=16, sliding_window_pattern=[False, True]) == ["full", "window.16"]
    assert groups("olmo2", sliding_window=16) == ["window.16"] * 2
    with pytest.raises(ConfigError, match="sliding_window_pattern"):
        groups(sliding_window=16, sliding_window_pattern=[True])


def test_ropes_of_layers_that_slide():
    def ropes(**fields):
        config = ModelConfig.from_mapping({**GOOD, **fields})
        return config.rope, config.local_rope

    scaling = {"rope_type": "linear", "factor": 8.0}
    full, local = ropes(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=scaling)
    assert (full.theta, full.type, full.factor, local.theta, local.type) == (1e6, "linear", 8.0, 1e4, "default")
    nested = {
        "full_attention": {**scaling, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert ropes(rope_parameters=nested) == (full, local)
    assert ropes(rope_parameters={"full_attention": nested["full_attention"]}) == (full, None)
    config = ModelConfig.from_gguf({**GGUF, "llama.rope.freq_base_swa": 1e4}, TENSORS)
    assert (config.rope.theta, config.local_rope.theta) == (1e5, 1e4)


LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
GGUF_LATENT = {
    "llama.attention.kv_lora_rank": 32,
    "llama.attention.key_length": 48,
    "llama.attention.value_length": 32,
    "llama.rope.dimension_count": 16,
}


RECURRENT = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}


GGUF_RECURRENT = {
    "llama.ssm.conv_kernel": 4,
    "llama.ssm.state_size": 16,
    "llama.ssm.group_count": 2,
    "llama.ssm.time_step_rank": 4,
    "llama.ssm.inner_size": 64,
    "llama.full_attention_interval": 2,
}


def test_every_row_writes_a_program():
    for architecture, row in ROWS.items():
        latent = row.write is deepseek.program
        if architecture != architecture.lower():  # a class, as config.json names it
            stated = {**GOOD, **(EXPERTS if row.experts else {}), **(LATENT if latent else {})}
            stated |= RECURRENT if row.recurrence else {}
            stated |= {"architectures": [architecture]}
            program = program_for(ModelConfig.from_mapping(stated))
        else:
            stated = {**GGUF, **({"llama.expert_count": 8, "llama.expert_used_count": 2} if row.experts else {})}
            stated |= GGUF_LATENT if latent else {}
            stated |= GGUF_RECURRENT if row.recurrence else {}
            metadata = {key.replace("llama", architecture): value for key, value in stated.items()}
            program = program_for(ModelConfig.from_gguf({**metadata, "general.architecture": architecture}, TENSORS))
        [export] = program.exports
        assert program.buffers[export].shape[1] == {"logits": 100, "hidden": 64}[export]


def test_latents_and_their_index():
    index = {"index_topk": 8, "index_n_heads": 4, "index_head_dim": 16, "num_nextn_predict_layers": 1}
    stated = {**GOOD, **LATENT, **index, "num_hidden_layers": 8, "q_lora_rank": 24}
    config = ModelConfig.from_mapping(stated)
    assert (config.num_kv_heads, config.head_dim, config.draft_layers) == (1, 16, 1)
    assert config.latent.q_rank == 24 and config.latent.interleaved and config.latent.index.full == (True,) * 8
    kinds = {
        "FFSSFSSS": {"index_topk_freq": 4, "index_skip_topk_offset": 1, "index_topk_pattern": "FFSSFSSS"},
        "FFFSSSFS": {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        "FFSSFSSF": {"index_topk_freq": 3},
        "FSFSFSFS": {"index_topk_pattern": "F" * 8, "indexer_types": ["full", "shared"] * 4},
    }
    for want, fields in kinds.items():
        full = ModelConfig.from_mapping(stated | fields).latent.index.full
        assert "".join("F" if own else "S" for own in full) == want
    for field, value in (
        ("kv_lora_rank", 0),
        ("qk_rope_head_dim", None),
        ("index_n_heads", None),
        ("index_topk_freq", 0),
        ("index_skip_topk_offset", 0),
        ("indexer_types", ["shared"] * 8),
        ("index_topk_pattern", "FF"),
        ("rope_interleave", "yes"),
    ):
        with pytest.raises(ConfigError) as caught:
            ModelConfig.from_mapping(stated | {field: value})
        assert caught.value.param == field


def test_what_a_gguf_file_states_about_recurrent_layers():
    def spec(**changed):
        stated = {**GGUF_RECURRENT, **{f"llama.{name}": value for name, value in changed.items()}}
        return recurrence_from_gguf(Fields(stated, "llama"), 5)

    found = spec()
    assert (found.key_heads, found.key_dim, found.heads, found.value_dim, found.taps) == (2, 16, 4, 16, 4)
    assert found.layers == (True, False, True, False, True)
    assert spec(full_attention_interval=None).layers == (True, True, True, False, True)
    assert recurrence_from_gguf(Fields({}, "llama"), 2) is None
    for name, value in (("ssm.inner_size", 62), ("ssm.group_count", 3), ("ssm.conv_kernel", 1)):
        with pytest.raises(ConfigError, match=name):
            spec(**{name: value})


def test_what_a_file_states_about_recurrent_layers():
    spec = recurrence_from_mapping(RECURRENT, 5)
    assert spec.layers == (True, True, True, False, True)
    assert (spec.key_heads, spec.heads, spec.key_dim, spec.value_dim, spec.taps) == (2, 4, 8, 12, 4)
    assert recurrence_from_mapping({**RECURRENT, "full_attention_interval": 2}, 3).layers == (True, False, True)
    kinds = ["full_attention", "linear_attention"]
    assert recurrence_from_mapping({**RECURRENT, "layer_types": kinds}, 2).layers == (False, True)
    assert recurrence_from_mapping({}, 2) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"linear_num_key_heads": 3}, "linear_num_value_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim"),
        ({"linear_num_value_heads": None, "layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
    ],
)
def test_recurrent_layers_that_make_no_sense(change, field):
    with pytest.raises(ConfigError) as caught:
        recurrence_from_mapping({**RECURRENT, **change}, 2)
    assert caught.value.param == field


def test_recurrent_layers_of_a_family_that_has_none_are_refused():
    with pytest.raises(ConfigError, match="Qwen3 with recurrent layers") as caught:
        program_for(ModelConfig.from_mapping({**GOOD, **RECURRENT, "architectures": ["Qwen3ForCausalLM"]}))
    assert caught.value.code == "unsupported"
