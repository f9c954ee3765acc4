"""The tokenizer and the chat template of a checkpoint: where the files of the weights' room meet the text room."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.engine.port import Engine
from octavo.errors import BadFileError, MissingFileError, in_file
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.fetch import resolve


def load_tokenizer(model: str) -> Tokenizer:
    """Of a model as the user names it. Reads headers and the tokenizer, no weights."""
    checkpoint = open_checkpoint(resolve(model))
    try:
        return tokenizer_of(checkpoint)
    finally:
        checkpoint.close()


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


def check_template(template: ChatTemplate | None, engine: Engine) -> None:
    """The verdict on the template that came up beside the engine. A bad one ends the load: raises BadFileError."""
    if template is None:
        return
    try:
        template.check()
    except BadFileError:
        engine.close()
        raise


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
