"""`octavo show MODEL`: what a checkpoint says of itself; headers only, no tensor data is read."""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing
from dataclasses import fields

from octavo.cli.screen import human, table
from octavo.runner.model import model_config
from octavo.weights import fetch
from octavo.weights.checkpoint import open_checkpoint


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name, a GGUF file or a safetensors folder")
    parser.add_argument("--tensors", action="store_true", help="every tensor with its type, shape and bytes")


def run(args: argparse.Namespace) -> int:
    path = fetch.resolve(args.model)
    with closing(open_checkpoint(path)) as checkpoint:
        config = model_config(checkpoint)
        rows = [("file", str(path)), ("format", checkpoint.format)]
        rows += [(field.name, _text(getattr(config, field.name))) for field in fields(config)]
        types: Counter[str] = Counter()
        for header in checkpoint.headers.values():
            types[header.dtype] += header.nbytes
        rows += [(f"tensors of {dtype}", human(size)) for dtype, size in types.most_common()]
        table("", ("", "value"), rows)
        if args.tensors:
            listed = [(h.name, h.dtype, str(list(h.shape)), human(h.nbytes)) for h in checkpoint.headers.values()]
            table("", ("tensor", "type", "shape", "size"), listed)
    return 0


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
