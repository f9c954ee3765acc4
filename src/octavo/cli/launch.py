"""`octavo launch PROGRAM`: starts a coding agent that talks to this server, told by its own means; --print shows them.

Nothing is written to disk: environment and arguments of this one start carry everything. A key is handed on in
the environment alone, never in an argument.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import MissingFileError, ResourceError, UsageError

KEY = "OCTAVO_API_KEY"
NO_KEY = "none"  # programs want one, whether or not the server does
SECONDS = 10.0  # for the server to list its models
HOUR = 3_600_000  # milliseconds; a long prompt takes minutes on a CPU


@dataclass(frozen=True, slots=True)
class Served:
    """root: the address without /v1. context: tokens that fit, None where the server does not say."""

    root: str
    model: str
    context: int | None
    key: str

    @property
    def url(self) -> str:
        return f"{self.root}/v1"


@dataclass(frozen=True, slots=True)
class Start:
    """unset: variables that would point elsewhere. secret: those that hold the key."""

    command: tuple[str, ...]
    environment: dict[str, str]
    unset: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()


def claude(served: Served) -> Start:
    """A header that changes with every request would cost the cached prefix; the server answers nothing else."""
    environment = {
        "ANTHROPIC_BASE_URL": served.root,
        "ANTHROPIC_AUTH_TOKEN": served.key,
        "ANTHROPIC_MODEL": served.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": served.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": served.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": served.model,
        "API_TIMEOUT_MS": str(HOUR),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if served.context is not None:
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output_tokens(served.context))
    return Start(("claude",), environment, ("ANTHROPIC_API_KEY",), ("ANTHROPIC_AUTH_TOKEN",))


def codex(served: Served) -> Start:
    settings: dict[str, Any] = {
        "model": served.model,
        "model_provider": "octavo",
        "model_providers.octavo.name": "Octavo",
        "model_providers.octavo.base_url": served.url,
        "model_providers.octavo.wire_api": "responses",
        "model_providers.octavo.env_key": KEY,
        "model_providers.octavo.stream_idle_timeout_ms": HOUR,
        "web_search": "disabled",
        "features.image_generation": False,
    }
    if served.context is not None:
        settings["model_context_window"] = served.context
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    return Start(("codex", *words), {KEY: served.key}, secret=(KEY,))


def opencode(served: Served) -> Start:
    model: dict[str, Any] = {"name": served.model, "tool_call": True}
    if served.context is not None:
        model["limit"] = {"context": served.context, "output": output_tokens(served.context)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Octavo",
        "options": {"baseURL": served.url, "apiKey": f"{{env:{KEY}}}", "timeout": False},
        "models": {served.model: model},
    }
    name = f"octavo/{served.model}"
    settings = {"provider": {"octavo": provider}, "model": name, "small_model": name, "share": "disabled"}
    return Start(("opencode",), {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), KEY: served.key}, secret=(KEY,))


def qwen(served: Served) -> Start:
    environment = {"OPENAI_BASE_URL": served.url, "OPENAI_API_KEY": served.key, "OPENAI_MODEL": served.model}
    return Start(("qwen", "--auth-type", "openai"), environment, secret=("OPENAI_API_KEY",))


PROGRAMS: dict[str, tuple[Callable[[Served], Start], str]] = {
    "codex": (codex, "npm install -g @openai/codex"),
    "claude": (claude, "npm install -g @anthropic-ai/claude-code"),
    "opencode": (opencode, "npm install -g opencode-ai"),
    "qwen": (qwen, "npm install -g @qwen-code/qwen-code"),
}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("program", choices=tuple(PROGRAMS), help="which one")
    parser.add_argument(
        "words", nargs="*", metavar="ARGUMENT", help="for the program; after --, where they begin with -"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8737", help="of the server (default: http://127.0.0.1:8737)")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--print", action="store_true", help="print what would be set and started, for a shell")


def run(args: argparse.Namespace) -> int:
    make, install = PROGRAMS[args.program]
    start = make(_served(args))
    if args.print:
        print(as_shell(start, args.words))
        return 0
    program = shutil.which(start.command[0])
    if program is None:
        raise MissingFileError(f"{args.program} is not installed: {install}", code="program_missing")
    environment = {name: value for name, value in os.environ.items() if name not in start.unset}
    os.execve(program, [*start.command, *args.words], environment | start.environment)


def output_tokens(context: int) -> int:
    """Of one answer: a quarter of the context, so that most of it is left to the conversation."""
    return max(1, min(8192, context // 4))


def as_shell(start: Start, words: list[str]) -> str:
    """Lines that do the same in a shell; a key that is set stays in its variable."""
    lines = [f"unset {name}" for name in start.unset]
    for name, value in start.environment.items():
        if name in start.secret and value != NO_KEY:
            if name != KEY:
                lines.append(f'export {name}="${KEY}"')
            continue
        lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join((*lines, shlex.join((*start.command, *words))))


def _served(args: argparse.Namespace) -> Served:
    """Raises UsageError, ResourceError."""
    parts = urlsplit(args.url if "://" in args.url else f"http://{args.url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise UsageError(f"not an address: {args.url!r} (write http://127.0.0.1:8737)", param="url")
    root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    key = os.environ.get(KEY, "").strip() or NO_KEY
    try:
        rows = _models(f"{root}/v1/models", key)
    except ResourceError:
        if args.print and args.model:
            return Served(root, args.model, None, key)
        raise
    row = next((row for row in rows if args.model in (None, row.get("id"))), None)
    if row is None and args.model != "default":
        served = ", ".join(str(row.get("id")) for row in rows)
        raise UsageError(f"{root} does not serve {args.model!r}; served: {served}", param="model")
    row = rows[0] if row is None else row
    context = row.get("max_model_len")
    return Served(root, str(row["id"]), context if isinstance(context, int) else None, key)


def _models(url: str, key: str) -> list[dict[str, Any]]:
    """Raises ResourceError."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            rows = json.load(response)["data"]
        if not rows or not all(isinstance(row["id"], str) for row in rows):
            raise ValueError("no models are listed")
        return list(rows)
    except urllib.error.HTTPError as error:
        hint = f": set {KEY}" if error.code == 401 else ""
        raise ResourceError(f"{url}: HTTP {error.code}{hint}", code="server_refused") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", None) or error
        raise ResourceError(f"{url}: {reason}; is `octavo serve MODEL` running?", code="server_unreachable") from None
