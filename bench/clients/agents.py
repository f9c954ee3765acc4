"""Clients that are commands: how each is told where the server is, what it is asked, what it must have said.

The scripted model calls the tool that the task names; the client runs it, sends the result, and prints the answer.
Each gets a home and a working folder of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SAID = "The tool said:"
WORD = "from-the-shell"


@dataclass(frozen=True)
class Run:
    """One start of a command, in a folder that is its home too. expects: patterns in its output. typed: into it."""

    what: str
    command: list[str]
    environment: dict[str, str]
    folder: Path
    expects: tuple[str, ...]
    typed: str = ""


ECHO = f"echo {WORD}"


def order(tool: str, **arguments: object) -> str:
    """What the scripted model obeys."""
    return f"call {tool} {json.dumps(arguments)}"


def claude_code(bin_: Path, url: str, home: Path) -> list[Run]:
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "default",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "default",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    claude = [str(bin_ / "claude"), "-p"]
    asked = [*claude, order("Bash", command=ECHO), "--allowedTools", "Bash"]
    told = [*claude, "Good morning", "--output-format", "json"]
    return [
        Run("print", told, environment, home, ('"subtype":"success"', "You said: ")),
        Run("tools: Bash", asked, environment, home, (SAID, WORD)),
    ]


def codex(bin_: Path, url: str, home: Path) -> list[Run]:
    folder = home / ".codex"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        'model = "default"\nmodel_provider = "octavo"\nweb_search = "disabled"\napproval_policy = "never"\n'
        'sandbox_mode = "danger-full-access"\n[features]\nimage_generation = false\n'
        f'[model_providers.octavo]\nname = "Octavo"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "KEY"\n'
    )
    exec_ = [str(bin_ / "codex"), "exec", "--skip-git-repo-check"]
    environment = {"KEY": "none", "CODEX_HOME": str(folder)}
    return [
        Run("exec", [*exec_, "Good morning"], environment, home, ("You said: Good morning",)),
        Run("tools: shell", [*exec_, order("exec_command", cmd=ECHO)], environment, home, (SAID, WORD)),
    ]


def opencode(bin_: Path, url: str, home: Path) -> list[Run]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Octavo",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"default": {"name": "default", "tool_call": True}},
    }
    settings = {
        "provider": {"octavo": provider},
        "model": "octavo/default",
        "small_model": "octavo/default",
        "autoupdate": False,
        "share": "disabled",
    }
    (home / "opencode.json").write_text(json.dumps(settings))
    run = [str(bin_ / "opencode"), "run"]
    environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return [
        Run("run", [*run, "Good morning"], environment, home, ("You said: ",)),
        Run(
            "tools: bash",
            run,
            environment,
            home,
            (SAID, WORD),
            typed=order("bash", command=ECHO, description="says it"),
        ),
    ]


def qwen_code(bin_: Path, url: str, home: Path) -> list[Run]:
    environment = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "default"}
    qwen = [str(bin_ / "qwen"), "--auth-type", "openai", "-p"]
    asked = [*qwen, order("run_shell_command", command=ECHO, is_background=False), "--yolo"]
    return [
        Run("prompt", [*qwen, "Good morning"], environment, home, ("You said: ",)),
        Run("tools: run_shell_command", asked, environment, home, (SAID, WORD)),
    ]


AGENTS: dict[str, Callable[[Path, str, Path], list[Run]]] = {
    "claude-code": claude_code,
    "codex": codex,
    "opencode": opencode,
    "qwen-code": qwen_code,
}
