"""What a checkpoint states about latent attention: ranks and head widths, and the index that chooses its keys.

Reads facts only; models/deepseek.py makes a program of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """The index of sparse attention: each row attends to its `top_k` best keys.

    full: per layer, whether it has an index of its own; the others use that of the nearest one before.
    interleaved: how pairs stand in its rotated rows; None: not stated. across_drafts: the layer that drafts chooses
    with the last true token, and every draft behind attends to those keys alone.
    """

    heads: int
    head_dim: int
    top_k: int
    full: tuple[bool, ...]
    interleaved: bool | None = None
    across_drafts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Keys and values of all heads as one latent of kv_rank dims a token, and one rotated key of rope_dim dims.

    q_rank None: queries are projected at once. nope_dim: dims of a head's query and key that do not rotate.
    interleaved: how pairs stand in the rotated rows. split: the file holds the key and value halves of kv_b apart.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool = True
    split: bool = False
    index: IndexSpec | None = None


def latent_from_mapping(fields: Fields, layers: int) -> LatentSpec | None:
    """Of config.json; None for a model that states no latent."""
    if fields.get("kv_lora_rank") is None:
        return None
    return LatentSpec(
        q_rank=None if fields.get("q_lora_rank") is None else fields.size("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        interleaved=fields.flag("rope_interleave") is not False,
        index=_index(fields, layers),
    )


def latent_from_gguf(fields: Fields, tensors: Mapping[str, tuple[int, ...]]) -> LatentSpec | None:
    """Of GGUF metadata. Older files state the widths of a head as they are, newer ones those of the latent beside."""
    if fields.get("attention.kv_lora_rank") is None:
        return None
    rope_dim = fields.size("rope.dimension_count")
    key, value = (
        fields.size(f"attention.{name}_length_mla", fields.size(f"attention.{name}_length"))
        for name in ("key", "value")
    )
    if key <= rope_dim:
        raise fields.bad("attention.key_length", f"more than the {rope_dim} dims that rotate")
    return LatentSpec(
        q_rank=None if fields.get("attention.q_lora_rank") is None else fields.size("attention.q_lora_rank"),
        kv_rank=fields.size("attention.kv_lora_rank"),
        nope_dim=key - rope_dim,
        rope_dim=rope_dim,
        value_dim=value,
        split="blk.0.attn_k_b.weight" in tensors,
        index=_index_from_gguf(fields, tensors),
    )


def _index_from_gguf(fields: Fields, tensors: Mapping[str, tuple[int, ...]]) -> IndexSpec | None:
    """The tensors tell which layers have an index."""
    if fields.get("attention.indexer.top_k") is None:
        return None
    layers = fields.size("block_count")
    return IndexSpec(
        heads=fields.size("attention.indexer.head_count"),
        head_dim=fields.size("attention.indexer.key_length"),
        top_k=fields.size("attention.indexer.top_k"),
        full=tuple(f"blk.{layer}.indexer.attn_k.weight" in tensors for layer in range(layers)),
    )


def _index(fields: Fields, layers: int) -> IndexSpec | None:
    if fields.get("index_topk") is None:
        return None
    return IndexSpec(
        heads=fields.size("index_n_heads"),
        head_dim=fields.size("index_head_dim"),
        top_k=fields.size("index_topk"),
        full=_full_layers(fields, layers),
        interleaved=fields.flag("indexer_rope_interleave"),
        across_drafts=bool(fields.flag("index_share_for_mtp_iteration")),
    )


def _full_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """A list of names, else a pattern of letters, else every n-th layer from an offset on, else all."""
    for name, full, shared in (("indexer_types", "full", "shared"), ("index_topk_pattern", "F", "S")):
        stated = fields.get(name)
        if stated is None:
            continue
        listed = isinstance(stated, (str, list, tuple)) and len(stated) >= layers
        if not listed or any(kind not in (full, shared) for kind in stated) or stated[0] != full:
            raise fields.bad(name, f"{layers} of {full} and {shared}, the first {full}")
        return tuple(kind == full for kind in stated[:layers])
    interval, offset = fields.size("index_topk_freq", 1), fields.integer("index_skip_topk_offset", 2)
    if offset < 1:
        raise fields.bad("index_skip_topk_offset", "a positive integer")
    return tuple(max(layer - offset + 1, 0) % interval == 0 for layer in range(layers))
