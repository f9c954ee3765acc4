"""Every family that GGUF has: a toy file, with the names of the gguf package and what converters do to the values,
against transformers on the same weights."""

import gguf
import numpy as np
import pytest
from stepping import Stepper
from test_parity import TOLERANCE
from tiny import logits_of, prompt_of, twin

from octavo.backends import executor_for
from octavo.models.registry import program_for
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.prepare import prepare
from octavo.weights.stated import model_config

TOKENS = prompt_of(60, seed=4)


def interleaved(array, heads):
    """Rows of a head: from halves side by side to pairs."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def plus_one(name, array, config):
    return array + 1 if "norm" in name else array


def permuted(name, array, config):
    if ".q_proj." in name:
        return interleaved(array, config.num_attention_heads)
    return interleaved(array, config.num_key_value_heads) if ".k_proj." in name else array


def turned(name, array, config):
    return array.T if array.ndim == 2 and ".h." in name else array


def gemma2_keys(writer, config):
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def gemma3_keys(writer, config):
    full, local = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(3)
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(full["factor"])


def window_keys(writer, config):
    writer.add_sliding_window(config.sliding_window)


def expert_keys(writer, config):
    writer.add_expert_count(config.num_experts if hasattr(config, "num_experts") else config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def windowed_expert_keys(writer, config):
    expert_keys(writer, config)
    window_keys(writer, config)


def gpt_oss_keys(writer, config):
    windowed_expert_keys(writer, config)
    rope = config.rope_parameters
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def next_values(name, array, config):
    """-exp of rates, the 1 of norms added but for that of the delta rule's output, the convolution without an axis."""
    if name.endswith("A_log"):
        return -np.exp(array)
    if "conv1d" in name:
        return array[:, 0]
    return array + 1 if "norm" in name and "linear_attn" not in name else array


def next_keys(writer, config):
    expert_keys(writer, config)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))


def by_key_heads(values, config):
    """The rows of q, k, v and z, which stand side by side for each key head: (q, k and v of all heads; z)."""
    heads, each = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    widths = [config.linear_key_head_dim] * 2 + [each * config.linear_value_head_dim] * 2
    parts = np.split(values.reshape(heads, sum(widths), -1), np.cumsum(widths)[:-1], axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    return np.concatenate([q, k, v]), z


def keep(name, array, config):
    return array


def no_keys(writer, config):
    """Those that every file has will do."""


# Member of tiny.MEMBERS -> architecture of the file, what its converter does to values, which keys it adds, and what
# the file cannot say (the real sizes follow other rules).
FILES = {
    "llama": ("llama", permuted, no_keys, {}),
    "mistral-window": ("llama", permuted, window_keys, {}),
    "qwen2": ("qwen2", keep, no_keys, {}),
    "qwen3": ("qwen3", keep, no_keys, {}),
    "mixtral": ("llama", permuted, expert_keys, {}),
    "mixtral-window": ("llama", permuted, windowed_expert_keys, {}),
    "qwen2moe": ("qwen2moe", keep, expert_keys, {}),
    "qwen3moe": ("qwen3moe", keep, expert_keys, {}),
    "gpt-oss": ("gpt-oss", keep, gpt_oss_keys, {}),
    "qwen3next": ("qwen3next", next_values, next_keys, {}),
    "olmo2": ("olmo2", keep, no_keys, {}),
    "gpt2": ("gpt2", turned, no_keys, {}),
    "gemma": ("gemma", plus_one, no_keys, {}),
    "gemma2": ("gemma2", plus_one, gemma2_keys, {"query_pre_attn_scalar": 24}),
    "gemma3": ("gemma3", plus_one, gemma3_keys, {"query_pre_attn_scalar": 24}),
}


def apart(state, config):
    """Experts' gates and ups as tensors of their own; a gate with one row as a vector; the delta rule's inputs."""
    in_turn = any(name.endswith("mlp.router.weight") for name in state)  # gate, up, gate, ...; and transposed
    for name, tensor in state.items():
        values, stem = tensor.numpy(), name.replace("_bias", "")
        end = "bias" if stem != name else "weight"
        if "mlp.experts." in name and in_turn and end == "weight":
            values = values.swapaxes(1, 2)
        if stem.endswith("in_proj_qkvz.weight"):
            yield from zip(
                (stem.replace("qkvz", "qkv"), stem.replace("qkvz", "z")), by_key_heads(values, config), strict=True
            )
        elif name.endswith("dt_bias"):
            yield name.replace("dt_bias", "dt_proj.bias"), values
        elif stem.endswith("experts.gate_up_proj"):
            halves = (values[:, ::2], values[:, 1::2]) if in_turn else np.split(values, 2, axis=1)
            for half, part in zip(("gate", "up"), halves, strict=True):
                yield stem.replace("gate_up_proj", f"{half}_proj.{end}"), part
        elif stem.endswith("experts.down_proj"):
            yield f"{stem}.{end}", values
        else:
            yield name, values[0] if name.endswith("expert_gate.weight") else values


def write(model, path, arch, convert, add_keys, one_by_one=False):
    """one_by_one: a tensor an expert, as the first files of mixtures had them."""
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if arch == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(model.model.layers[-1].self_attn.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if "rope_theta" in config.rope_parameters:
            writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_keys(writer, config)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, values in apart(state, config):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = np.ascontiguousarray(convert(name, values, config))
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        called = f"{called}.weight" if called and called.endswith("attn_sinks") else called
        if one_by_one and called and "_exps." in called:
            for e, expert in enumerate(array):
                writer.add_tensor(called.replace("_exps.", f".{e}."), np.ascontiguousarray(expert))
            continue
        writer.add_tensor(called or "output.weight", array)  # some architectures are always tied
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("member", FILES)
def test_a_file_gives_the_logits_of_its_model(member, tmp_path):
    arch, convert, add_keys, changed = FILES[member]
    model, _ = twin(member)
    write(model, tmp_path / "toy.gguf", arch, convert, add_keys, one_by_one=member == "mixtral-window")
    checkpoint = open_checkpoint(tmp_path / "toy.gguf", matrices="f32")
    program = program_for(model_config(checkpoint))
    tensors = {
        name: prepare(checkpoint.read(source), program.weights[name].prep)
        for name, source in match(program.weights, checkpoint).items()
    }
    got = Stepper(executor_for("reference"), program, tensors).prompt(TOKENS)
    with changed_scale(model, changed):
        assert np.abs(got - logits_of(model, TOKENS)).max() <= TOLERANCE


class changed_scale:
    """The twin with another query scale while it is asked."""

    def __init__(self, model, changed):
        self.layers = [layer.self_attn for layer in model.model.layers] if changed else []
        self.scale = changed.get("query_pre_attn_scalar", 1) ** -0.5
        self.before = [attention.scaling for attention in self.layers]

    def __enter__(self):
        for attention in self.layers:
            attention.scaling = self.scale

    def __exit__(self, *error):
        for attention, scaling in zip(self.layers, self.before, strict=True):
            attention.scaling = scaling
