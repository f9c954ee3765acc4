"""`octavo show MODEL`: what a checkpoint says of itself; headers only, no tensor data is read."""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing
from dataclasses import fields, is_dataclass

from octavo.cli.screen import human, table
from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.runner.model import plain_program
from octavo.text.chat import ChatTemplate
from octavo.weights import fetch
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.stated import model_config, tokenizer_of


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name, a GGUF file or a safetensors folder")
    parser.add_argument("--tensors", action="store_true", help="every tensor with its type, shape and bytes")


def run(args: argparse.Namespace) -> int:
    path = fetch.resolve(args.model)
    with closing(open_checkpoint(path)) as checkpoint:
        config = model_config(checkpoint)
        rows = [("file", str(path)), ("format", checkpoint.format)]
        rows += _facts(config)
        rows += _vocabulary(checkpoint)
        types: Counter[str] = Counter()
        for header in checkpoint.headers.values():
            types[header.dtype] += header.nbytes
        rows += [(f"tensors of {dtype}", human(size)) for dtype, size in types.most_common()]
        rows += [("note", note) for note in (*config.warnings, *checkpoint.rounding(_exact(checkpoint, config)))]
        table("", ("", "value"), rows)
        if args.tensors:
            listed = [(h.name, h.dtype, str(list(h.shape)), human(h.nbytes)) for h in checkpoint.headers.values()]
            table("", ("tensor", "type", "shape", "size"), listed)
    return 0


def _exact(checkpoint: Checkpoint, config: ModelConfig) -> set[str]:
    """Tensors that the model's program keeps in float32; none where no family writes one."""
    try:
        weights = plain_program(checkpoint, config).weights.values()
    except ConfigError:
        return set()
    return {weight.sources[checkpoint.format] for weight in weights if weight.plain}


def _facts(config: ModelConfig) -> list[tuple[str, str]]:
    """What the file states; where it is silent, the family's own rule holds."""
    rows = []
    for field in fields(config):
        value = getattr(config, field.name)
        if value is None or field.name == "warnings":
            continue
        if is_dataclass(value):
            stated = {each.name: getattr(value, each.name) for each in fields(value)}
            value = ", ".join(f"{name} {_text(each)}" for name, each in stated.items() if each not in (None, ()))
        rows.append((field.name, _text(value)))
    return rows


def _vocabulary(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """The tokenizer and the chat template, both tried."""
    if checkpoint.format == "hf" and "tokenizer.json" not in checkpoint.tokenizer:
        return [("tokenizer", "none: no tokenizer.json")]
    tokenizer = tokenizer_of(checkpoint)
    ends = ", ".join(f"{token} {tokenizer.pieces.text(token)}" for token in tokenizer.eos_ids)
    begins = "none" if tokenizer.bos_id is None else f"{tokenizer.bos_id} {tokenizer.bos_token}"
    rows = [("tokenizer", f"{tokenizer.size} tokens"), ("begins with", begins), ("ends with", ends or "none")]
    if tokenizer.chat_template is None:
        return [*rows, ("chat template", "none")]
    template = ChatTemplate.of(tokenizer)
    try:
        template.check()
    finally:
        template.close()
    return [*rows, ("chat template", f"{len(tokenizer.chat_template)} characters, renders")]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        value = ", ".join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
