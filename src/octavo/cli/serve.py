"""`octavo serve MODEL`: the OpenAI-compatible server; the engine runs in a child process."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from octavo.cli import flags
from octavo.cli.screen import capacity_table, progress
from octavo.engine.port import ModelInfo
from octavo.server import app


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    flags.add_flags(parser, flags.SERVE_FLAGS, "server")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    serve = flags.resolve(args, flags.SERVE_FLAGS)
    config = flags.engine_config(args, served_model_name=serve.pop("served_model_name"))
    with ExitStack() as loading:
        advance = loading.enter_context(progress("loading"))

        def loaded(info: ModelInfo) -> None:
            loading.close()  # the bar ends with the load, not with the server
            capacity_table(info)

        return app.serve(config, progress=advance, loaded=loaded, **serve)
