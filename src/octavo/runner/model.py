"""What model a checkpoint holds: its configuration, whatever the format says it in, and its plain program."""

from __future__ import annotations

from octavo.errors import in_file
from octavo.model_config import ModelConfig
from octavo.models.registry import program_for
from octavo.program.ir import Program
from octavo.weights.checkpoint import Checkpoint


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """Reads headers, and of the tensors the rotary frequency factors alone. Raises ConfigError."""
    if checkpoint.format == "hf":
        with in_file(checkpoint.path / "config.json"):
            return ModelConfig.from_mapping(checkpoint.config)
    shapes = {name: header.shape for name, header in checkpoint.headers.items()}
    factors = checkpoint.rope_factors()
    with in_file(checkpoint.path):
        return ModelConfig.from_gguf(checkpoint.config, shapes, factors or ())


def plain_program(checkpoint: Checkpoint, config: ModelConfig, max_model_len: int | None = None) -> Program:
    """The program as the family writes it. Raises ConfigError for what no family covers."""
    with in_file(checkpoint.path):
        return program_for(config, max_model_len)
