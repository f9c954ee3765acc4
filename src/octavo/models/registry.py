"""Architecture name -> family and switches: the one list of models that Octavo knows, by both formats' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.models import bert, deepseek, gemma, gpt2, gpt_oss, llama, mixtral, qwen3_next
from octavo.models.draft import Module
from octavo.program.ir import Program


@dataclass(frozen=True, slots=True)
class Row:
    """One member of a family. write: (config, switches, max_model_len) -> plain program; switches: its family's.
    experts, recurrence: whether its checkpoints may hold mixtures of experts, and layers of recurrent state. draft: the
    modules that draft, where there are any: the same arguments."""

    title: str
    write: Callable[[ModelConfig, Any, int | None], Program]
    switches: Any
    experts: bool = False
    recurrence: bool = False
    draft: Callable[[ModelConfig, Any, int | None], tuple[Module, ...]] | None = None


_LLAMA = Row("Llama", llama.program, llama.Switches(gguf_interleaved=True))
_MISTRAL = Row("Mistral", llama.program, llama.Switches(qkv_bias=False, o_bias=False, window=4096))
_QWEN2 = Row("Qwen2", llama.program, llama.Switches(qkv_bias=True, o_bias=False))
_QWEN3 = Row("Qwen3", llama.program, llama.Switches(qk_norm="head"))
_QWEN3_NEXT = Row(
    "Qwen3-Next", qwen3_next.program, qwen3_next.Switches(), True, recurrence=True, draft=qwen3_next.draft_modules
)
_SMOLLM3 = Row(
    "SmolLM3", llama.program, llama.Switches(tied=True, theta=2e6, no_rope_interval=4, gguf_interleaved=True)
)
# A GGUF file of OLMo 3 says olmo2 and states a window.
_OLMO2 = Row(
    "OLMo 2",
    llama.program,
    llama.Switches(qk_norm="row", norms="after", theta=5e5, window_period=4, scaled_windows=False),
)
_OLMO3 = Row("OLMo 3", llama.program, replace(_OLMO2.switches, window=4096))
_GEMMA = Row("Gemma", gemma.program, gemma.Switches(branch_norms=False))
_GEMMA2 = Row(
    "Gemma 2",
    gemma.program,
    gemma.Switches(window=4096, window_period=2, attention_cap=50.0, final_cap=30.0, large_layers=46),
)
_GEMMA3 = Row(
    "Gemma 3",
    gemma.program,
    gemma.Switches(qk_norm=True, window=1024, window_period=6, theta=1e6, local_theta=10_000.0, large_layers=62),
)
# Text alone: what a checkpoint with a part for images says.
_GEMMA3_TEXT = replace(
    _GEMMA3,
    switches=replace(
        _GEMMA3.switches,
        spare=tuple(f"{root}{part}." for root in ("", "model.") for part in ("vision_tower", "multi_modal_projector")),
    ),
)
_MIXTRAL = Row(
    "Mixtral",
    mixtral.program,
    mixtral.Switches(older=("block_sparse_moe", "w1", "w3", "w2"), gguf_interleaved=True),
    True,
)
_QWEN2_MOE = Row(
    "Qwen2-MoE", mixtral.program, mixtral.Switches(qkv_bias=True, normalize=False, shared=True), experts=True
)
_QWEN3_MOE = Row(
    "Qwen3-MoE", mixtral.program, mixtral.Switches(o_bias=True, qk_norm="head", normalize=False), experts=True
)
# Converters of Qwen3-MoE do not write down what all its members do.
_QWEN3_MOE_FILE = replace(_QWEN3_MOE, switches=replace(_QWEN3_MOE.switches, normalize=True))
_BERT = Row("BERT", bert.program, bert.Switches())
_GPT2 = Row("GPT-2", gpt2.program, gpt2.Switches())
_GPT_OSS = Row("gpt-oss", gpt_oss.program, gpt_oss.Switches(), experts=True)
_DEEPSEEK_V2 = Row("DeepSeek-V2", deepseek.program, deepseek.Switches(), True, draft=deepseek.draft_modules)
_DEEPSEEK_V3 = replace(_DEEPSEEK_V2, title="DeepSeek-V3", switches=deepseek.Switches(scoring="sigmoid"))
_GLM_DSA = replace(_DEEPSEEK_V3, title="GLM-5", switches=deepseek.Switches(scoring="sigmoid", index_interleaved=True))

# Names of config.json, then of GGUF's general.architecture (Mistral and SmolLM2 are "llama" there).
ROWS: Mapping[str, Row] = {
    "LlamaForCausalLM": _LLAMA,
    "Qwen3NextForCausalLM": _QWEN3_NEXT,
    "MistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "SmolLM3ForCausalLM": _SMOLLM3,
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO3,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3_TEXT,
    "MixtralForCausalLM": _MIXTRAL,
    "Qwen2MoeForCausalLM": _QWEN2_MOE,
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "GPT2LMHeadModel": _GPT2,
    "GptOssForCausalLM": _GPT_OSS,
    "gpt-oss": _GPT_OSS,
    "DeepseekV2ForCausalLM": _DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": _DEEPSEEK_V3,
    "DeepseekV32ForCausalLM": _DEEPSEEK_V3,
    "GlmMoeDsaForCausalLM": _GLM_DSA,
    "BertModel": _BERT,
    "llama": _LLAMA,
    "qwen2moe": _QWEN2_MOE,
    "qwen3moe": _QWEN3_MOE_FILE,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3next": _QWEN3_NEXT,
    "smollm3": _SMOLLM3,
    "olmo2": _OLMO2,
    "gpt2": _GPT2,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "deepseek2": _DEEPSEEK_V2,
    "glm-dsa": _GLM_DSA,
}


# Architectures whose files may state experts, and who writes them then.
MIXTURES: Mapping[str, Row] = {"llama": _MIXTRAL}


def row_for(config: ModelConfig) -> Row:
    row = ROWS.get(config.architecture)
    if config.experts is not None:
        row = MIXTURES.get(config.architecture, row)
    if row is None:
        raise ConfigError(
            f"architecture {config.architecture} is not one of {', '.join(sorted(ROWS))}", param="architectures"
        )
    if config.experts is not None and not row.experts:
        raise ConfigError(f"{row.title} with experts is not supported", code="unsupported", param="num_experts")
    if config.recurrence is not None and not row.recurrence:
        what = f"{row.title} with recurrent layers is not supported"
        raise ConfigError(what, code="unsupported", param="linear_num_value_heads")
    return row


def program_for(config: ModelConfig, max_model_len: int | None = None) -> Program:
    """The plain program of a checkpoint. Raises ConfigError for an architecture that no family here covers."""
    row = row_for(config)
    return row.write(config, row.switches, max_model_len)


def draft_modules(config: ModelConfig, max_model_len: int | None = None) -> tuple[Module, ...]:
    """What drafts in the model's own checkpoint, in order; nothing for a family without. Raises ConfigError."""
    row = row_for(config)
    return () if row.draft is None else row.draft(config, row.switches, max_model_len)
