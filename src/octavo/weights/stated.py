"""What a checkpoint states beside its tensors, whatever the format says it in: its model, its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import BadFileError, MissingFileError, in_file
from octavo.model_config import ModelConfig
from octavo.text.tokenizer import Tokenizer
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


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    files = checkpoint.tokenizer
    if checkpoint.format == "gguf":
        with in_file(checkpoint.path):
            return Tokenizer.from_gguf(files, where=str(checkpoint.path))
    path = files.get("tokenizer.json")
    if path is None:
        raise MissingFileError(f"{checkpoint.path}: no tokenizer.json", code="tokenizer_missing")
    generation = dict(_json(files.get("generation_config.json")))
    if "eos_token_id" in checkpoint.config:
        generation.setdefault("eos_token_id", checkpoint.config["eos_token_id"])
    return Tokenizer.from_files(Path(path), _json(files.get("tokenizer_config.json")), generation)


def _json(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadFileError(f"{path}: not JSON ({reason})", code="bad_json") from None
    if not isinstance(value, dict):
        raise BadFileError(f"{path}: not a JSON object", code="bad_json")
    return value
