"""`octavo serve MODEL...`: the server; each engine runs in a child process of its own."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from octavo.cli import flags
from octavo.cli.screen import capacity_table, progress
from octavo.config import EngineConfig
from octavo.engine.port import ModelInfo
from octavo.errors import UsageError
from octavo.server import app
from octavo.server.fleet import FleetConfig

OWN = {flag.name: flag for flag in (*flags.ENGINE_FLAGS, flags.SERVED_MODEL_NAME)}  # what one model of several may have


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "first", nargs="?", metavar="MODEL", help="a name (smollm2:135m), a GGUF file or a safetensors folder"
    )
    flags.add_flags(parser, flags.SERVE_FLAGS, "server")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    serve = flags.resolve(args, flags.SERVE_FLAGS)
    shared = flags.resolve(args, flags.ENGINE_FLAGS)
    first_name, given = serve.pop("served_model_name"), serve.pop("model")
    models = [{"model": args.first}] if args.first else []
    models += [model_of(text) for text in given]
    if not models:
        raise UsageError("octavo serve: which MODEL? A name, a GGUF file or a safetensors folder", param="model")
    if first_name is not None:
        models[0].setdefault("served_model_name", first_name)
    configs = [EngineConfig(**{**shared, **own}) for own in models]
    fleet = FleetConfig(
        aliases=aliases_of(serve.pop("alias")),
        **{name: serve.pop(name) for name in ("memory_budget", "idle_unload", "load_wait")},
    )
    with ExitStack() as loading:
        advance = loading.enter_context(progress("loading"))

        def loaded(info: ModelInfo) -> None:
            loading.close()  # the bar ends with the load, not with the server
            capacity_table(info)

        return app.serve(configs, fleet=fleet, progress=advance, loaded=loaded, **serve)


def model_of(text: str) -> dict[str, Any]:
    """`MODEL,max-model-len=4096` -> fields of its EngineConfig. Raises UsageError."""
    model, *pairs = re.split(r",(?=[a-z-]+=)", text)
    fields: dict[str, Any] = {"model": model}
    for pair in pairs:
        name, _, value = pair.partition("=")
        flag = OWN.get(name)
        if flag is None:
            raise UsageError(f"--model {text}: {name} is no flag of an engine{flags.near(name, OWN)}", param="model")
        try:
            fields[flag.key] = flags.parsed(flag, value)
        except ValueError as error:
            raise UsageError(f"--model {text}: {name}: {error}", param="model") from None
    return fields


def aliases_of(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=MODEL` each. Raises UsageError."""
    aliases: dict[str, str] = {}
    for text in texts:
        name, equals, model = text.partition("=")
        if not (name and equals and model):
            raise UsageError(f"--alias {text}: write NAME=MODEL", param="alias")
        if name in aliases:
            raise UsageError(f"--alias {text}: {name} is an alias of {aliases[name]} already", param="alias")
        aliases[name] = model
    return aliases
