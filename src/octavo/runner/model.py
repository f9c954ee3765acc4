"""The program of the model that a checkpoint holds."""

from __future__ import annotations

import json

from octavo.config import EngineConfig
from octavo.errors import BadFileError, ConfigError, in_file
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.ir import Program
from octavo.program.pooling import Pooling, causal, embeds, pooled
from octavo.weights.checkpoint import Checkpoint


def plain_program(checkpoint: Checkpoint, config: ModelConfig, max_model_len: int | None = None) -> Program:
    """The program as the family writes it. Raises ConfigError for what no family covers."""
    with in_file(checkpoint.path):
        return program_for(config, max_model_len)


def target_program(
    checkpoint: Checkpoint, model: ModelConfig, config: EngineConfig, max_model_len: int
) -> tuple[Program, Pooling | None]:
    """What the engine runs: the model's program, or the one that ends in a vector a request, and how it does.

    Raises ConfigError where an encoder is asked to generate.
    """
    program = plain_program(checkpoint, model, max_model_len)
    if config.task == "generate" and embeds(program):
        raise ConfigError(f"{checkpoint.path}: an encoder embeds, it does not generate", param="task")
    if config.task == "generate" or (config.task == "auto" and not embeds(program)):
        return program, None
    mode = config.pooling if config.pooling != "auto" else _stated_mode(checkpoint)
    mode = mode or ("mean" if embeds(program) else "last")
    pooling = Pooling(mode, config.normalize, mode != "last" or not causal(program))
    return pooled(program, pooling), pooling


_STATED = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}


def _stated_mode(checkpoint: Checkpoint) -> str | None:
    """What a folder of the sentence-transformers library says. Raises ConfigError for a mode that is not here."""
    path = checkpoint.path / "1_Pooling" / "config.json"
    if checkpoint.format != "hf" or not path.is_file():
        return None
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        chosen = [name for name, on in stated.items() if name.startswith("pooling_mode_") and on is True]
    except (OSError, ValueError, AttributeError, RecursionError):
        raise BadFileError(f"{path}: not a JSON object", code="bad_json") from None
    if len(chosen) != 1 or chosen[0] not in _STATED:
        what = " + ".join(chosen) or "no pooling mode"
        raise ConfigError(f"{path}: {what}: not supported", code="unsupported", param="pooling_mode")
    return _STATED[chosen[0]]
