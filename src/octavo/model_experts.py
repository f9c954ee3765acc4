"""What a checkpoint states about its experts: how many there are, how they are chosen, in which layers they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError
from octavo.fields import Fields, unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """None: the file is silent and the family's own rule holds.

    count: experts of a layer, of which each row goes to k. width, shared_width: of the MLP of one, and of the expert
    that every row goes to (0: none). sparse: per layer, whether its MLP is a mixture. normalize: shares sum to 1 before
    `scale`. scoring: softmax or sigmoid. groups, top_groups: see program/experts.py. method: topk_method of the file.
    alpha, limit: of a clamped gate (Builder.glu).
    """

    count: int
    k: int
    width: int
    shared_width: int
    sparse: tuple[bool, ...]
    normalize: bool | None = None
    scale: float | None = None
    scoring: str | None = None
    groups: int | None = None
    top_groups: int | None = None
    method: str | None = None
    alpha: float | None = None
    limit: float | None = None


def experts_from_mapping(mapping: Mapping[str, Any], layers: int) -> ExpertSpec | None:
    """Of config.json. None where it states no experts. Raises ConfigError."""
    fields = Fields(mapping)
    name = fields.called("num_local_experts", "n_routed_experts", "num_experts")
    if fields.get(name) in (None, 0):
        return None
    width = fields.size(fields.called("moe_intermediate_size", "intermediate_size"))
    shared = fields.get("shared_expert_intermediate_size")
    shared_width = fields.size("shared_expert_intermediate_size") if shared else 0
    if fields.get("n_shared_experts"):
        shared_width = fields.size("n_shared_experts") * width
    method = mapping.get("topk_method")
    return ExpertSpec(
        count=fields.size(name),
        k=fields.size(fields.called("num_experts_per_tok", "experts_per_token")),
        width=width,
        shared_width=shared_width,
        sparse=_sparse(fields, layers),
        normalize=fields.flag("norm_topk_prob"),
        scale=fields.optional("routed_scaling_factor"),
        scoring=_one_of(fields, "scoring_func", ("softmax", "sigmoid")),
        groups=None if fields.get("n_group") is None else fields.size("n_group"),
        top_groups=None if fields.get("topk_group") is None else fields.size("topk_group"),
        method=None if method is None else str(method),
        alpha=fields.optional("swiglu_alpha"),
        limit=fields.optional("swiglu_limit"),
    )


def _one_of(fields: Fields, name: str, choices: tuple[str, ...]) -> str | None:
    value = fields.get(name)
    if value is not None and value not in choices:
        raise unsupported(f"{name} {str(value)[:40]!r} is not one of {', '.join(choices)}", name)
    return None if value is None else str(value)


def _sparse(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Every decoder_sparse_step-th layer, from first_k_dense_replace on, except mlp_only_layers; or a list of names."""
    kinds = fields.get("mlp_layer_types")
    if kinds is not None:
        if not isinstance(kinds, (list, tuple)) or len(kinds) < layers or not {*kinds} <= {"dense", "sparse"}:
            raise fields.bad("mlp_layer_types", f"a list of {layers} names, dense or sparse")
        return tuple(kind == "sparse" for kind in kinds[:layers])
    if fields.get("moe_layer_freq") not in (None, 1):
        raise unsupported("moe_layer_freq: only 1 is supported", "moe_layer_freq")
    step, first = fields.size("decoder_sparse_step", 1), fields.integer("first_k_dense_replace", 0)
    dense = fields.ids("mlp_only_layers")
    return tuple(i >= first and (i + 1) % step == 0 and i not in dense for i in range(layers))


def experts_from_gguf(fields: Fields, tensors: Mapping[str, tuple[int, ...]], layers: int) -> ExpertSpec | None:
    """Of the metadata; the tensors tell which layers are mixtures and how wide the shared expert is."""
    if fields.get("expert_count") in (None, 0):
        return None
    sparse = tuple(f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(layers))
    shared = next((shape for name, shape in tensors.items() if name.endswith(".ffn_gate_shexp.weight")), (0,))
    functions = {1: "softmax", 2: "sigmoid"}
    function = fields.get("expert_gating_func")
    if function not in (None, 0) and function not in functions:
        raise unsupported(f"expert_gating_func: {str(function)[:40]} is not supported", "expert_gating_func")
    if fields.get("expert_used_count") is None:
        raise ConfigError(f"{fields.prefix}expert_used_count is missing", param="expert_used_count")
    return ExpertSpec(
        count=fields.size("expert_count"),
        k=fields.size("expert_used_count"),
        width=fields.size(fields.called("expert_feed_forward_length", "feed_forward_length")),
        shared_width=shared[0],
        sparse=sparse,
        normalize=fields.flag("expert_weights_norm"),
        scale=fields.optional("expert_weights_scale"),
        scoring=functions.get(function or 0),
        groups=None if fields.get("expert_group_count") is None else fields.size("expert_group_count"),
        top_groups=None if fields.get("expert_group_used_count") is None else fields.size("expert_group_used_count"),
    )
