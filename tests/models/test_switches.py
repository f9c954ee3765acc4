"""Each switch of a family matters: flipped, the logits miss transformers' by at least 100 times the tolerance.

Not here, because float32 cannot show them: the eps of a norm and where a norm rounds (tests/operators/test_norm.py).
"""

from dataclasses import replace

import numpy as np
import pytest
from stepping import Stepper
from test_parity import TOLERANCE
from tiny import logits_of, prompt_of, tensors_of, twin

from octavo.backends import executor_for
from octavo.model_config import ModelConfig
from octavo.models.registry import row_for
from octavo.weights.kinds import Tensor

TOKENS = prompt_of(90, seed=2)


def miss(member, rope="default", *, config=None, switches=None, weights=None, attrs=None):
    """Largest logit difference from the twin after a flip of the mapping, the switches, the weights or an attribute."""
    model, mapping = twin(member, rope)
    told = ModelConfig.from_mapping(config(dict(mapping)) if config else mapping)
    row = row_for(told)
    program = row.write(told, replace(row.switches, **(switches or {})), None)
    if attrs:
        program = replace(program, ops=tuple(replace(op, attrs=attrs(op)) for op in program.ops))
    tensors = tensors_of(model, program)
    if weights:
        tensors = {name: weights(name, tensor) for name, tensor in tensors.items()}
    got = Stepper(executor_for("reference"), program, tensors).prompt(TOKENS)
    return np.abs(got - logits_of(model, TOKENS)).max()


def rope(**changes):
    return lambda mapping: {**mapping, "rope_parameters": {**mapping["rope_parameters"], **changes}}


def field(**changes):
    return lambda mapping: {**mapping, **changes}


def plain(ending):
    """Norm weights of one place set to 1."""
    return lambda name, t: Tensor("f32", t.shape, np.ones_like(t.data)) if name.endswith(ending) else t


def swapped(name, t):
    """The two KV heads exchanged: as a wrong mapping of query heads would read them."""
    if not name.endswith((".wk", ".wv")):
        return t
    return Tensor("f32", t.shape, np.ascontiguousarray(np.roll(t.data, t.shape[0] // 2, axis=0)))


def interleaved(name, t):
    """Rows of q and k in interleaved rotary order."""
    if not name.endswith((".wq", ".wk")):
        return t
    heads = t.data.reshape(-1, 2, 8, t.shape[1]).swapaxes(1, 2)
    return Tensor("f32", t.shape, np.ascontiguousarray(heads).reshape(t.shape))


def scaled(op):
    return {**op.attrs, "scale": op.attrs["scale"] * 1.1} if "attention" in op.kind else op.attrs


def llama_order(op):
    return {**op.attrs, "order": "llama"} if op.kind == "norm" else op.attrs


def rms_rule(op):
    return {**op.attrs, "rule": "rms"} if op.kind == "norm" else op.attrs


def unscaled(op):
    return {**op.attrs, "scale": 1.0} if op.kind == "embed" else op.attrs


def local_as_full(mapping):
    """Layers that slide rotate as the others do."""
    return {**mapping, "rope_parameters": mapping["rope_parameters"]["full_attention"]}


def without(*names):
    return lambda mapping: {name: value for name, value in mapping.items() if name not in names}


def rolled(ending, axis=-2):
    """Rows of one weight moved on by one."""

    def move(name, t):
        if not name.endswith(ending):
            return t
        return Tensor("f32", t.shape, np.ascontiguousarray(np.roll(t.data, 1, axis=axis)))

    return move


def zeroed(ending):
    return lambda name, t: Tensor("f32", t.shape, np.zeros_like(t.data)) if name.endswith(ending) else t


FLIPS = {
    "nothing": ("llama", {}),
    "no layer kinds": ("olmo3", {"config": field(layer_types=None)}),
    "no layer kinds in gemma2": ("gemma2", {"config": field(layer_types=None)}),
    "no layer kinds in gemma3": ("gemma3", {"config": field(layer_types=None)}),
    "rope theta": ("llama", {"config": rope(rope_theta=600.0)}),
    "rope type linear": ("llama", {"rope": "linear", "config": rope(rope_type="default")}),
    "rope type llama3": ("llama", {"rope": "llama3", "config": rope(rope_type="default")}),
    "rope type yarn": ("llama", {"rope": "yarn", "config": rope(rope_type="default")}),
    "linear factor": ("llama", {"rope": "linear", "config": rope(factor=3.3)}),
    "llama3 factor": ("llama", {"rope": "llama3", "config": rope(factor=6.0)}),
    "llama3 low": ("llama", {"rope": "llama3", "config": rope(low_freq_factor=2.0)}),
    "llama3 high": ("llama", {"rope": "llama3", "config": rope(high_freq_factor=8.0)}),
    "llama3 length": ("llama", {"rope": "llama3", "config": rope(original_max_position_embeddings=32)}),
    "yarn factor": ("llama", {"rope": "yarn", "config": rope(factor=3.0)}),
    "yarn length": ("llama", {"rope": "yarn", "config": rope(original_max_position_embeddings=128)}),
    "yarn attention factor": ("llama", {"rope": "yarn-factor", "config": rope(attention_factor=None)}),
    "yarn mscale": ("llama", {"rope": "yarn-mscale", "config": rope(mscale=None)}),
    "yarn truncate": ("llama", {"rope": "yarn-whole", "config": rope(truncate=True)}),
    "yarn beta fast": ("llama", {"rope": "yarn-whole", "config": rope(beta_fast=8.0)}),
    "yarn beta slow": ("llama", {"rope": "yarn-whole", "config": rope(beta_slow=1.0)}),
    "rotary pairing": ("llama", {"weights": interleaved}),
    "head untied": ("llama", {"config": field(tie_word_embeddings=True)}),
    "qkv bias": ("llama-biased", {"switches": {"qkv_bias": False}}),
    "o bias": ("llama-biased", {"switches": {"o_bias": False}}),
    "qwen2 bias": ("qwen2", {"switches": {"qkv_bias": False}}),
    "activation": ("llama", {"config": field(hidden_act="gelu_pytorch_tanh")}),
    "scale": ("llama", {"attrs": scaled}),
    "kv heads": ("llama", {"weights": swapped}),
    "attention norm": ("llama", {"weights": plain("attn_norm")}),
    "mlp norm": ("llama", {"weights": plain("ffn_norm")}),
    "final norm": ("llama", {"weights": plain("norm")}),
    "q norm": ("qwen3", {"weights": plain("q_norm")}),
    "k norm": ("qwen3", {"weights": plain("k_norm")}),
    "qk norm": ("qwen3", {"switches": {"qk_norm": "none"}}),
    "delta norms": ("qwen3next", {"switches": {"offset_norms": False}}),
    "attention gate": ("qwen3next", {"weights": rolled("wg")}),
    "delta mixture shares": ("qwen3next-dense", {"config": field(norm_topk_prob=True)}),
    "delta shared expert": ("qwen3next", {"switches": {"shared": False}}),
    "delta rows of q, k and v": ("qwen3next", {"weights": rolled("wqkv")}),
    "delta rows per key head": ("qwen3next", {"weights": rolled("wba")}),
    "delta decay": ("qwen3next", {"weights": rolled("a_log", -1)}),
    "delta step": ("qwen3next", {"weights": zeroed("dt_bias")}),
    "delta convolution": ("qwen3next", {"weights": zeroed("conv")}),
    "delta gate": ("qwen3next", {"weights": rolled("wz")}),
    "delta output norm": ("qwen3next", {"weights": zeroed("0.norm")}),
    "partial rotation": ("qwen3next", {"config": rope(partial_rotary_factor=0.5)}),
    "mlp bias": ("llama-biased", {"config": field(mlp_bias=False)}),
    "norm placement": ("olmo2", {"weights": plain("post_ffw_norm")}),
    "attention output norm": ("olmo2", {"weights": plain("post_attention_norm")}),
    "row norm of q": ("olmo2", {"weights": plain("q_norm")}),
    "row norm of k": ("olmo2", {"weights": plain("k_norm")}),
    "gemma branch norms": ("gemma2", {"weights": plain("post_ffw_norm")}),
    "gemma norm order": ("gemma3", {"attrs": llama_order}),
    "embedding scale": ("gemma", {"attrs": unscaled}),
    "query scalar": ("gemma2", {"config": field(query_pre_attn_scalar=24)}),
    "attention cap": ("gemma2", {"config": field(attn_logit_softcapping=None)}),
    "attention cap size": ("gemma2", {"config": field(attn_logit_softcapping=3.0)}),
    "final cap": ("gemma2", {"config": field(final_logit_softcapping=None)}),
    "gemma2 pattern": ("gemma2", {"config": field(layer_types=None), "switches": {"window_period": 3}}),
    "gemma3 pattern": ("gemma3", {"config": field(layer_types=None, sliding_window_pattern=2)}),
    "gemma3 window": ("gemma3", {"config": field(sliding_window=9)}),
    "gemma3 qk norm": ("gemma3", {"weights": plain("q_norm")}),
    "gemma3 local rope": ("gemma3", {"config": local_as_full, "switches": {"local_theta": 500.0}}),
    "gelu": ("gemma", {"config": field(hidden_act="silu", hidden_activation="silu")}),
    "chosen experts": ("mixtral", {"config": field(num_experts_per_tok=3)}),
    "mixtral shares": ("mixtral", {"switches": {"normalize": False}}),
    "mixtral window": ("mixtral-window", {"config": field(sliding_window=9)}),
    "router": ("mixtral", {"weights": rolled("wrouter")}),
    "gate and up": ("mixtral", {"weights": rolled("wegate")}),
    "shared expert": ("qwen2moe", {"switches": {"shared": False}}),
    "gate of the shared expert": ("qwen2moe", {"weights": zeroed("wsg")}),
    "qwen2moe shares": ("qwen2moe", {"config": field(norm_topk_prob=True)}),
    "qwen2moe silence on shares": ("qwen2moe", {"config": field(norm_topk_prob=None), "switches": {"normalize": True}}),
    "qwen2moe bias": ("qwen2moe", {"config": field(qkv_bias=False)}),
    "qwen2moe windows": ("qwen2moe-sparse", {"config": field(layer_types=["full_attention"] * 6)}),
    "qwen3moe shares": ("qwen3moe", {"config": field(norm_topk_prob=False)}),
    "qwen3moe qk norm": ("qwen3moe", {"switches": {"qk_norm": "none"}}),
    "qwen3moe bias": ("qwen3moe-biased", {"config": field(attention_bias=False)}),
    "qwen3moe o bias": ("qwen3moe-biased", {"switches": {"o_bias": False}}),
    "qwen3moe silence on bias": (
        "qwen3moe-biased",
        {"config": field(attention_bias=None), "switches": {"qkv_bias": False}},
    ),
    "gpt2 activation": ("gpt2", {"config": field(activation_function="silu")}),
    "layer norm rule": ("gpt2", {"attrs": rms_rule}),
    "layer norm bias": ("gpt2", {"weights": zeroed("ffn_norm.bias")}),
    "positions": ("gpt2", {"weights": zeroed("positions")}),
    "mlp bias of gpt2": ("gpt2", {"weights": zeroed("up.b")}),
    "sinks": ("gpt-oss", {"weights": zeroed("sinks")}),
    "gpt-oss window": ("gpt-oss", {"config": field(sliding_window=9)}),
    "gpt-oss silence on windows": ("gpt-oss", {"config": field(layer_types=None), "switches": {"period": 3}}),
    "gpt-oss silence on the window": (
        "gpt-oss",
        {"config": without("layer_types", "sliding_window"), "switches": {"window": 9}},
    ),
    "clamped gate, alpha": ("gpt-oss", {"config": field(swiglu_alpha=1.5)}),
    "clamped gate, limit": ("gpt-oss-odd", {"config": field(swiglu_limit=3.0)}),
    "silence on alpha": ("gpt-oss", {"config": field(swiglu_alpha=None), "switches": {"alpha": 1.5}}),
    "silence on the limit": ("gpt-oss-odd", {"config": field(swiglu_limit=None), "switches": {"limit": 3.0}}),
    "yarn bounds": ("gpt-oss", {"config": rope(truncate=True)}),
    "gpt-oss theta": ("gpt-oss", {"config": rope(rope_theta=None), "switches": {"theta": 700.0}}),
    "gpt-oss bias": ("gpt-oss", {"config": field(attention_bias=False)}),
    "gpt-oss silence on bias": ("gpt-oss", {"config": field(attention_bias=None), "switches": {"bias": False}}),
    "router bias": ("gpt-oss", {"weights": zeroed("brouter")}),
    "bias of the experts' gate": ("gpt-oss", {"weights": zeroed("begate")}),
    "bias of the experts' up": ("gpt-oss", {"weights": zeroed("beup")}),
    "bias of the experts' down": ("gpt-oss", {"weights": zeroed("bedown")}),
    "window period": ("olmo3", {"config": field(layer_types=None), "switches": {"window_period": 3}}),
    "rope of windows": ("olmo3", {"config": local_as_full, "switches": {"scaled_windows": True}}),
    "window": ("mistral", {"config": field(sliding_window=16)}),
    "latent scale": ("deepseek-v3", {"attrs": scaled}),
    "latent scale of yarn": ("deepseek-v3", {"rope": "yarn-mscale", "config": rope(mscale_all_dim=None, mscale=0.7)}),
    "latent pairs": ("deepseek-v3", {"config": field(rope_interleave=False)}),
    "experts' groups": ("deepseek-v3", {"config": field(n_group=2)}),
    "experts' best groups": ("deepseek-v2", {"config": field(topk_method="greedy")}),
    "experts' scores": ("deepseek-v2", {"config": field(n_group=2, topk_group=1)}),
    "experts' scale": ("deepseek-v3", {"config": field(routed_scaling_factor=1.0)}),
    "experts' choice bias": ("deepseek-v3", {"weights": zeroed("choice_bias")}),
    "experts' shares": ("glm-dsa", {"config": field(norm_topk_prob=False)}),
    "experts of every row": ("deepseek-v3", {"weights": zeroed("sdown")}),
    "latent eps": ("deepseek-v3", {"switches": {"latent_eps": 0.1}}),
    "query latent norm": ("deepseek-v2", {"weights": plain("qn_norm")}),
    "key latent norm": ("deepseek-v2-lite", {"weights": plain("c_norm")}),
    "latent bias": ("deepseek-v2-lite", {"config": field(attention_bias=False)}),
    "index keys": ("deepseek-v32", {"config": field(index_topk=20)}),
    "index pairs": ("deepseek-v32", {"switches": {"index_interleaved": True}}),
    "index eps": ("deepseek-v32", {"switches": {"index_eps": 1.0}}),
    "index key norm": ("deepseek-v32", {"weights": plain("ik_weight")}),
    "glm index pairs": ("glm-dsa", {"config": field(indexer_rope_interleave=False)}),
    "glm index layers": ("glm-dsa", {"config": field(indexer_types=["full", *["shared"] * 3])}),
    "no rope layers": ("smollm3", {"config": field(no_rope_layers=[1] * 5)}),
    "no rope interval": ("smollm3", {"config": field(no_rope_layers=None, no_rope_layer_interval=3)}),
}


SAME = [name for name in FLIPS if name.startswith("no layer kinds") or name == "nothing"]


@pytest.mark.parametrize("name", FLIPS)
def test_a_flipped_switch_shows(name):
    member, flip = FLIPS[name]
    if name in SAME:
        assert miss(member, **flip) <= TOLERANCE
    else:
        assert miss(member, **flip) >= 100 * TOLERANCE


def test_the_embedding_scale_is_held_in_the_type_of_the_weights():
    _, mapping = twin("gemma")
    scales = []
    for dtype in ("float32", "bfloat16"):
        told = ModelConfig.from_mapping({**mapping, "dtype": dtype, "hidden_size": 3072, "head_dim": 24})
        row = row_for(told)
        embed = next(op for op in row.write(told, row.switches, None).ops if op.kind == "embed")
        scales.append(embed.attrs["scale"])
    assert scales == [float(np.float32(3072**0.5)), 55.5]


def test_gpt2_ties_its_head_in_silence():
    _, mapping = twin("gpt2")
    told = ModelConfig.from_mapping({name: value for name, value in mapping.items() if name != "tie_word_embeddings"})
    assert "head" not in row_for(told).write(told, row_for(told).switches, None).weights


def test_silence_means_what_the_family_says():
    """SmolLM3 files that state neither ties nor rotary layers nor a base."""
    _, mapping = twin("smollm3")
    silent = {"no_rope_layers", "no_rope_layer_interval", "tie_word_embeddings", "rope_parameters"}
    told = ModelConfig.from_mapping({name: value for name, value in mapping.items() if name not in silent})
    row = row_for(told)
    program = row.write(told, row.switches, None)
    rotating = {op.ins[0] for op in program.ops if op.kind == "rope"}
    assert rotating == {f"{layer}.{name}" for layer in (0, 1, 2, 4) for name in "qk"}
    assert "head" not in program.weights
    angles = next(op for op in program.ops if op.kind == "rope_angles")
    assert angles.attrs["inv_freq"][1] == pytest.approx(2e6 ** (-2 / 16), rel=1e-6)
