"""Joins a program's weights with a checkpoint's tensors: every weight has its tensor, every tensor its weight.

Codes: missing_tensors, unknown_tensors (65), bad_config (78).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.errors import BadFileError, ConfigError
from octavo.program.ir import Weight
from octavo.weights.catalogue import TensorHeader, quoted
from octavo.weights.checkpoint import ROPE_FACTORS, Checkpoint
from octavo.weights.prepare import prepared_shape
from octavo.weights.stack import EXPERT

# Buffers that old checkpoints store and every program computes for itself.
COMPUTED = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias", "embeddings.position_ids")
# The head of encoders for a task that no program here computes.
POOLERS = ("pooler.dense.weight", "pooler.dense.bias")
# Copies of the embedding, present in some files although the program ties the head to it.
TIED_HEADS = ("lm_head.weight", "output.weight")
SHOWN = 5  # names in one message

# End of a tensor's name in either format -> the fields of the configuration that size its rows and columns.
FIELDS = {
    ("embed_tokens.weight", "token_embd.weight", *TIED_HEADS): ("vocab_size", "hidden_size"),
    ("gate_proj.weight", "up_proj.weight", "ffn_gate.weight", "ffn_up.weight"): ("intermediate_size", "hidden_size"),
    ("down_proj.weight", "ffn_down.weight"): ("hidden_size", "intermediate_size"),
    ("q_proj.weight", "attn_q.weight"): ("num_attention_heads", "hidden_size"),
    ("q_proj.bias", "attn_q.bias"): ("num_attention_heads",),
    ("k_proj.weight", "v_proj.weight", "attn_k.weight", "attn_v.weight"): ("num_key_value_heads", "hidden_size"),
    ("k_proj.bias", "v_proj.bias", "attn_k.bias", "attn_v.bias"): ("num_key_value_heads",),
    ("o_proj.weight", "attn_output.weight"): ("hidden_size", "num_attention_heads"),
    ("q_norm.weight", "k_norm.weight"): ("head_dim",),
    ("norm.weight",): ("hidden_size",),
}


def match(weights: Mapping[str, Weight], checkpoint: Checkpoint, spare: Iterable[str] = ()) -> dict[str, str]:
    """Weight name -> name of its tensor in the checkpoint, in the program's order. spare: Program.spare."""
    found: dict[str, str] = {}
    missing: list[str] = []
    used: set[str] = set()
    for weight in weights.values():
        source = weight.sources.get(checkpoint.format)
        if source is None:
            raise ConfigError(f"weight {weight.name} has no name in the format {checkpoint.format}", param=weight.name)
        others = (*weight.others, *(_elsewhere(source) if checkpoint.format == "hf" else ()))
        places = ((name, checkpoint.find(name)) for name in (source, *others))
        name, place = next(((name, place) for name, place in places if place is not None), (source, None))
        if place is None:
            missing.append(source.replace(EXPERT, "0"))
            continue
        _check_shape(checkpoint, name, place.header, weight)
        found[weight.name] = name
        used.update(place.names)
    if missing:
        what = f"{checkpoint.path}: lacks {_names(missing)}"
        raise BadFileError(what, code="missing_tensors", param=missing[0])
    extra = sorted(checkpoint.headers.keys() - used)
    unknown = [name for name in extra if not _expected(name, checkpoint.format) and not name.startswith((*spare,))]
    if unknown:
        what = f"{checkpoint.path}: holds {_names(unknown)}, which this architecture does not use"
        raise BadFileError(what, code="unknown_tensors", param=unknown[0])
    return found


def set_aside(checkpoint: Checkpoint, spare: Iterable[str]) -> list[str]:
    """Names of tensors that are there and that no program uses."""
    return sorted(name for name in checkpoint.headers if name.startswith((*spare,)))


def _elsewhere(source: str) -> tuple[str, ...]:
    """The same tensor's name in checkpoints of a bare model, which leave the first part out, and in those of a model
    with several parts, of which this is the one for text."""
    bare = source.partition(".")[2]
    return bare, f"language_model.{source}", f"model.language_model.{bare}"


def _expected(name: str, file_format: str) -> bool:
    """Tensors left over on purpose. A head is one only when no weight of the program asked for it."""
    if name in TIED_HEADS or name.endswith((*COMPUTED, *POOLERS)):
        return True
    return file_format == "gguf" and name == ROPE_FACTORS


def _check_shape(checkpoint: Checkpoint, source: str, header: TensorHeader, weight: Weight) -> None:
    shape = prepared_shape(header.shape, weight.prep)
    if shape == weight.shape:
        return
    field = source
    for names, axes in FIELDS.items():
        if source.endswith(names) and len(axes) == len(shape) == len(weight.shape):
            field = next(axis for axis, a, b in zip(axes, shape, weight.shape, strict=True) if a != b)
            break
    what = f"{field}: the configuration makes {source} {list(weight.shape)}, the file holds {list(shape)}"
    raise ConfigError(f"{checkpoint.path}: {what}", param=field)


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    rest = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(map(quoted, listed[:SHOWN])) + rest
