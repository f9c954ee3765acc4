"""DeepSeek and GLM-5 in GGUF: toy files of both generations, named by the gguf package, against transformers."""

import gguf
import numpy as np
import pytest
from stepping import Stepper
from test_gguf_families import apart
from test_parity import TOLERANCE
from tiny import logits_of, prompt_of, twin

from octavo.backends import executor_for
from octavo.models.registry import program_for
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.match import match
from octavo.weights.prepare import prepare
from octavo.weights.stated import model_config

TOKENS = prompt_of(60, seed=4)
# Of the program's names that the package's table lacks.
INDEX = {"wq_b": "attn_q_b", "wk": "attn_k", "weights_proj": "proj", "k_norm": "k_norm"}


def keys(writer, config, split):
    """Of one generation: the widths of a head, or those of the latent with a head's beside."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_head_count_kv(1 if split else config.num_attention_heads)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim if split else key)
    writer.add_value_length(config.kv_lora_rank if split else config.v_head_dim)
    if split:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(config.v_head_dim)
    sigmoid = "V2" not in type(config).__name__
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(sigmoid)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    if sigmoid:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if hasattr(config, "index_topk"):
        writer.add_uint32(f"{writer.arch}.attention.indexer.head_count", config.index_n_heads)
        writer.add_uint32(f"{writer.arch}.attention.indexer.key_length", config.index_head_dim)
        writer.add_uint32(f"{writer.arch}.attention.indexer.top_k", config.index_topk)
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])


def tensors(model, arch, split):
    """Name and values of each tensor; the keys' half of kv_b is stored turned where the halves stand apart."""
    config = model.config
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, values in apart(model.state_dict(), config):
        array, parts = np.ascontiguousarray(values), name.split(".")
        if "indexer" in parts:
            yield f"blk.{parts[2]}.indexer.{INDEX[parts[-2]]}.{parts[-1]}", array
        elif split and "kv_b_proj" in parts:
            heads = array.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            yield (
                f"blk.{parts[2]}.attn_k_b.weight",
                np.ascontiguousarray(heads[:, : config.qk_nope_head_dim].swapaxes(1, 2)),
            )
            yield f"blk.{parts[2]}.attn_v_b.weight", np.ascontiguousarray(heads[:, config.qk_nope_head_dim :])
        elif name.endswith("e_score_correction_bias"):
            yield f"blk.{parts[2]}.exp_probs_b.bias", array
        else:
            yield names.get_name(name, try_suffixes=(".weight", ".bias")), array


@pytest.mark.parametrize("split", [False, True], ids=["older", "newer"])
@pytest.mark.parametrize(
    ("member", "rope", "arch"),
    [
        ("deepseek-v2-lite", "default", "deepseek2"),
        ("deepseek-v3", "yarn-mscale-alike", "deepseek2"),
        ("glm-dsa", "default", "glm-dsa"),
    ],
)
def test_a_file_gives_the_logits_of_its_model(member, rope, arch, split, tmp_path):
    model, _ = twin(member, rope)
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", arch)
    keys(writer, model.config, split)
    for name, array in tensors(model, arch, split):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "toy.gguf", matrices="f32")
    program = program_for(model_config(checkpoint))
    held = {
        name: prepare(checkpoint.read(source), program.weights[name].prep)
        for name, source in match(program.weights, checkpoint).items()
    }
    got = Stepper(executor_for("reference"), program, held).prompt(TOKENS)
    assert np.abs(got - logits_of(model, TOKENS)).max() <= TOLERANCE
