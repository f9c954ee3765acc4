"""`make clients`, first half: each client in an environment of its own, in pinned versions, since they disagree.

    python bench/clients/install.py [--into .clients] [NAME ...]

Python clients by pip into a virtual environment, the others by npm into a folder. A client that does not install is
reported, and the others go on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

PIP: dict[str, tuple[str, ...]] = {
    "openai": ("openai==3.57.0",),
    "anthropic": ("anthropic==2.14.0",),
    "ollama": ("ollama==0.6.3",),
    "langchain-openai": ("langchain-openai==1.7.4",),
    "llama-index": ("llama-index-llms-openai-like==0.8.1",),
    "openai-agents": ("openai-agents==0.24.0",),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic]==2.62.0",),
    "instructor": ("instructor==1.17.0",),
    "lm-eval": ("lm-eval[api]==0.4.13",),
    "guidellm": ("guidellm==0.8.1", "torch==2.13.0"),
}
NPM: dict[str, tuple[str, ...]] = {
    "openai-node": ("openai@6.49.0",),
    "ai-sdk": ("ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "@ai-sdk/anthropic@3", "zod@4"),
    "codex": ("@openai/codex@0.171.0",),
    "opencode": ("opencode-ai@1.18.33",),
    "qwen-code": ("@qwen-code/qwen-code@0.15.10",),
    "claude-code": ("@anthropic-ai/claude-code@2.1.197",),
}
NAMES = (*PIP, *NPM)


def install(name: str, folder: Path) -> None:
    """Raises CalledProcessError."""
    stamp = folder / "installed"
    if stamp.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{name}: installing into {folder}", flush=True)
    if name in PIP:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PIP[name]], check=True)
    else:
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *NPM[name]], cwd=folder, check=True)
    stamp.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description="installs the clients that bench/clients/run.py drives")
    parser.add_argument("--into", type=Path, default=Path(".clients"), help="folder of the environments")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="default: all of them")
    args = parser.parse_args()
    failed = []
    for name in args.names or NAMES:
        try:
            install(name, args.into / name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: failed with exit code {error.returncode}", file=sys.stderr)
            failed.append(name)
    if failed:
        raise SystemExit(f"not installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
