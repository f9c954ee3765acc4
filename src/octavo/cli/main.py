"""The `octavo` command: finds the sub-command, hands over, turns an OctavoError into one line and an exit code.

Start-up is part of the interface: nothing but argparse is imported until a command is known.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from octavo import __version__
from octavo.errors import OctavoError

# command -> (module, one line of help); the module has add_arguments(parser, command) and run(args) -> exit code.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "answer one prompt, or chat"),
    "serve": ("serve", "serve the OpenAI-compatible API"),
    "pull": ("pull", "bring a model into the cache"),
    "ls": ("models", "list the models at hand"),
    "rm": ("models", "remove a model from the cache"),
    "show": ("show", "what a model is: configuration, tensors, tokenizer"),
    "explain": ("explain", "print the program: operators, shapes, bytes, FLOPs"),
    "bench": ("bench", "measure prefill and decode speed of the whole engine"),
    "perplexity": ("perplexity", "perplexity of a text, and fidelity against the reference"),
    "doctor": ("doctor", "what this machine offers and whether the build uses it"),
    "completion": ("completion", "print a shell completion script"),
}


def load(command: str) -> ModuleType:
    return import_module(f"octavo.cli.{COMMANDS[command][0]}")


def command_parser(command: str) -> argparse.ArgumentParser:
    text = COMMANDS[command][1]
    parser = argparse.ArgumentParser(prog=f"octavo {command}", description=f"{text[0].upper()}{text[1:]}.")
    load(command).add_arguments(parser, command)
    return parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command's parser, for the reference and for shell completion."""
    return {command: command_parser(command) for command in COMMANDS}


def top_parser() -> argparse.ArgumentParser:
    """For `octavo --help` and for words that are no command."""
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Exact, fast LLM inference on the machine you have.",
        epilog="Every flag is also OCTAVO_<FLAG> in the environment and a key of --config FILE (TOML): docs/cli.md.",
    )
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (errors.py lists them)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] not in COMMANDS:
            top_parser().parse_args(words)
        command = words[0]
        options = command_parser(command).parse_intermixed_args(words[1:])
        options.command = command
        return int(load(command).run(options))
    except OctavoError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
