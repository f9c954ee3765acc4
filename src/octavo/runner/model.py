"""What model a checkpoint holds: its configuration, whatever the format says it in."""

from __future__ import annotations

from octavo.model_config import ModelConfig
from octavo.weights.checkpoint import Checkpoint


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """Reads headers, and of the tensors the rotary frequency factors alone. Raises ConfigError."""
    if checkpoint.format == "hf":
        return ModelConfig.from_mapping(checkpoint.config)
    shapes = {name: header.shape for name, header in checkpoint.headers.items()}
    return ModelConfig.from_gguf(checkpoint.config, shapes, checkpoint.rope_factors() or ())
