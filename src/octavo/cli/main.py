"""The `octavo` command: finds the sub-command, hands over, turns an OctavoError into one line and an exit code.

Start-up is part of the interface: nothing but argparse is imported until a command is known.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from octavo import __version__
from octavo.cli.parser import Parser
from octavo.errors import EngineError, OctavoError, ResourceError, UsageError

INTERRUPTED, BROKEN_PIPE = 130, 141  # exit codes beside those of errors.py

# command -> (module, one line of help); the module has add_arguments(parser, command) and run(args) -> exit code.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "answer one prompt, or chat"),
    "serve": ("serve", "serve the OpenAI-compatible API"),
    "batch": ("batch", "answer a file of requests"),
    "pull": ("pull", "bring a model into the cache"),
    "ls": ("models", "list the models at hand"),
    "rm": ("models", "remove a model from the cache"),
    "show": ("show", "what a model is: configuration, tensors, tokenizer"),
    "explain": ("explain", "print the program: operators, shapes, bytes, FLOPs; or where a request's time went"),
    "ps": ("ps", "what runs on a server now"),
    "top": ("top", "watch a server: requests, rates, percentiles, KV cache"),
    "plan": ("plan", "whether a model fits a machine, how fast it is there, and why"),
    "simulate": ("simulate", "a service in virtual time, with the scheduler that serves"),
    "replay": ("replay", "make the plans of a journal again and compare them"),
    "calibrate": ("calibrate", "measure this machine for plan and simulate"),
    "bench": ("bench", "measure prefill and decode speed of the whole engine"),
    "load": ("load", "put a server under load, and report how it answers"),
    "launch": ("launch", "start a coding agent on the served model"),
    "perplexity": ("perplexity", "perplexity of a text, and fidelity against the reference"),
    "quantize": ("quantize", "write a model again in fewer bits"),
    "train": ("train", "learn a draft head or an n-gram model from text"),
    "doctor": ("doctor", "what this machine offers and whether the build uses it"),
    "completion": ("completion", "print a shell completion script"),
}


def load(command: str) -> ModuleType:
    return import_module(f"octavo.cli.{COMMANDS[command][0]}")


def command_parser(command: str) -> Parser:
    text = COMMANDS[command][1]
    parser = Parser(f"octavo {command}", f"{text[0].upper()}{text[1:]}.")
    load(command).add_arguments(parser, command)
    return parser


def parsers() -> dict[str, Parser]:
    """Every command's parser, for the reference and for shell completion."""
    return {command: command_parser(command) for command in COMMANDS}


def top_parser() -> Parser:
    """For `octavo --help` and for words that are no command."""
    epilog = (
        "Flags of engine, sampling, server and bench are also OCTAVO_<FLAG> in the environment and keys of "
        "--config FILE (TOML): docs/cli.md."
    )
    parser = Parser("octavo", "Exact, fast LLM inference on the machine you have.", epilog)
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (errors.py lists them). Leaves through SystemExit after --help."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except OctavoError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except MemoryError:
        return _fail(ResourceError("out of memory"))
    except Exception as error:
        if os.environ.get("OCTAVO_TRACEBACK"):
            raise
        return _fail(EngineError(_of_ours(error)))


def _dispatch(words: list[str]) -> int:
    if not words:
        top_parser().print_help(sys.stderr)
        return UsageError.exit_code
    if words[0].startswith("-"):
        top_parser().parse_args(words)
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, 1)
        meant = f", did you mean {near[0]}?" if near else f"; commands are {', '.join(COMMANDS)}"
        raise UsageError(f"octavo: no command {words[0]!r}{meant}")
    options = command_parser(words[0]).read(words[1:])
    options.command = words[0]
    code = int(load(words[0]).run(options))
    sys.stdout.flush()  # here, where a reader that went away is no surprise
    return code


def _fail(error: OctavoError) -> int:
    sys.stdout.flush()
    print(error.line(), file=sys.stderr)
    return error.exit_code


def _of_ours(error: Exception) -> str:
    """An exception that nobody foresaw, and where it came from, in one line."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}" if place else "an unknown place"
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__} at {where}: {said} (OCTAVO_TRACEBACK=1 shows all of it)"


if __name__ == "__main__":
    sys.exit(main())
