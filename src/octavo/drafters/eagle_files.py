"""An EAGLE head's folder, as the public releases have it -> what the programs are built from.

EAGLE-3 is told by its `hidden_norm`. Its features are the states that enter layers 2, n / 2 and n - 3 of the target
unless config.json says which: `eagle_aux_hidden_state_layer_ids` counts entries (j: what enters layer j), inside
`eagle_config` outputs (j: what leaves layer j).

Codes: unsupported, bad_config (78), missing_tensors, unknown_tensors (65).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.drafters.eagle_program import EagleShape
from octavo.drafters.folder import HeadFolder
from octavo.drafters.target import Target
from octavo.errors import ConfigError, in_file
from octavo.fields import unsupported
from octavo.model_config import ModelConfig
from octavo.models.rope import frequencies
from octavo.program.ir import Op

# What other trainers offer and these programs do not compute: a field that is true, or the beginning of a tensor.
VARIANTS = ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual", "parallel_drafting")
LAYERS = ("midlayer", "layers.0")
TAPPED = "eagle_aux_hidden_state_layer_ids"
FAMILY = "LlamaForCausalLM"  # whose configuration is read, whatever class the folder names
THETA = 10_000.0  # of heads that state none


def eagle_shape(folder: HeadFolder, target: Target) -> EagleShape:
    """Reads headers. Raises ConfigError, BadFileError for what is no EAGLE head of this target."""
    with in_file(folder.path):
        _refuse(folder)
        config = ModelConfig.from_mapping({**folder.checkpoint.config, "architectures": [FAMILY]})
    if config.num_layers != 1:
        raise unsupported(f"{folder.path}: {config.num_layers} layers: EAGLE heads have one", "num_hidden_layers")
    folder.fits("a vocabulary", config.vocab_size, target.model.vocab_size)
    layer = next((name for name in LAYERS if folder.has(f"{name}.self_attn.q_proj.weight")), LAYERS[0])
    three = folder.has(f"{layer}.hidden_norm.weight")
    if not three:
        folder.fits("hidden states", config.hidden_size, target.model.hidden_size)
    with in_file(folder.path):
        inv_freq, factor = frequencies(
            config.rope, config.head_dim, config.max_position, THETA, target.config.max_model_len
        )
        taps = tuple(f"{number}.x" for number in _entered(folder, target)) if three else (_residual(target),)
    missing = next((tap for tap in taps if tap not in target.program.buffers), None)
    if missing is not None:
        raise unsupported(f"{folder.path}: the head reads {missing}, which the target does not compute", TAPPED)
    norm = None if three else _final_norm(target)
    return EagleShape(
        config=config,
        three=three,
        taps=taps,
        width=target.model.hidden_size,
        layer=layer,
        draft_vocab=_draft_vocab(folder) if three else config.vocab_size,
        inv_freq=inv_freq,
        factor=factor,
        embedding=target.embedding if config.hidden_size == target.model.hidden_size else None,
        norm=norm,
        norm_weights=() if norm is None else tuple(target.program.weights[name] for name in norm.weights),
        output=None if three else target.head_weight,
        fc_bias=folder.has("fc.bias"),
    )


def _draft_vocab(folder: HeadFolder) -> int:
    with in_file(folder.path):
        return folder.fields.size("draft_vocab_size", folder.shape("lm_head.weight")[0])


def spare(shape: EagleShape) -> tuple[str, ...]:
    """Beginnings of names of tensors that may be there and are the target's."""
    return ("embed_tokens.",) if shape.embedding is not None else ()


def _refuse(folder: HeadFolder) -> None:
    """Names the variant that is not computed here."""
    fields = {**_nested(folder), **folder.checkpoint.config}
    for name in VARIANTS:
        if fields.get(name) or any(tensor.startswith(f"{name}.") for tensor in folder.checkpoint.headers):
            raise unsupported(f"{name}: EAGLE heads of this kind are not supported", name)
    if fields.get("use_aux_hidden_state") is False:
        raise unsupported(
            "use_aux_hidden_state false: EAGLE-3 goes on from three states of the target", "use_aux_hidden_state"
        )


def _nested(folder: HeadFolder) -> Mapping[str, Any]:
    nested = folder.fields.get("eagle_config")
    return nested if isinstance(nested, dict) else {}


def _entered(folder: HeadFolder, target: Target) -> tuple[int, ...]:
    """Layers of the target whose inputs are the features."""
    layers = target.model.num_layers
    given, shift = folder.fields.get(TAPPED), 0
    if not given:
        given, shift = _nested(folder).get(TAPPED), 1
    if not given:
        return 2, layers // 2, max(layers - 3, 0)
    sound = isinstance(given, list) and all(type(one) is int and 0 <= one + shift <= layers for one in given)
    if not sound:
        raise ConfigError(f"{TAPPED} {str(given)[:40]}: not layers of the target, which has {layers}", param=TAPPED)
    return tuple(one + shift for one in given)


def _final_norm(target: Target) -> Op:
    """Behind the last layer, before the head."""
    for op in target.program.ops:
        if op.kind == "norm" and op.outs == (target.hidden,):
            return op
    raise unsupported("EAGLE-1 and 2 go on from a normed state, and the target's head eats another", "architectures")


def _residual(target: Target) -> str:
    """What that norm takes its rows from: the states of all tokens."""
    rows = _final_norm(target).ins[0]
    return next(op.ins[0] for op in target.program.ops if op.outs == (rows,))
