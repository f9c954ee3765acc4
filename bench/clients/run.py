"""`make clients`: drives every client against running servers and writes docs/clients.md.

    python bench/clients/run.py [--into .clients] [--write] [--real MODEL] [NAME ...]

Each client runs against a scripted model, which calls tools when it is told to; programs run against a real one too,
where the shapes of answers count and not their words. Outcomes are kept beside the environments, so that one client may
be run again; the page is of all that are known.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agents import AGENTS, Run
from evaluators import EVALUATORS
from install import NAMES, NPM, PIP

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = {
    "openai": "use_openai.py",
    "anthropic": "use_anthropic.py",
    "ollama": "use_ollama.py",
    "langchain-openai": "use_langchain.py",
    "llama-index": "use_llama_index.py",
    "openai-agents": "use_openai_agents.py",
    "pydantic-ai": "use_pydantic_ai.py",
    "instructor": "use_instructor.py",
    "openai-node": "use_openai.mjs",
    "ai-sdk": "use_ai_sdk.mjs",
}
KEPT = "outcomes.json"
SECONDS = 300  # for one client


@dataclass
class Outcome:
    """What a client did: checks that held and those that did not, with their words."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serving(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """The address of a server, without a path. What it says later is read and dropped."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, env=os.environ | environment, text=True, **both)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"listening on (http://\S+)/v1", line):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield found[1]
                return
        raise SystemExit(f"{' '.join(command)} did not listen")
    finally:
        process.terminate()
        process.wait(30)


def start(command: list[str], environment: dict[str, str], folder: Path, typed: str = "") -> tuple[int, str]:
    """(exit code, output and errors)."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TERM", "SSL_CERT_FILE")}
    try:
        done = subprocess.run(
            command,
            env=kept | {"HOME": str(folder)} | environment,
            cwd=folder,
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return 124, (said.decode() if isinstance(said, bytes) else said) + f"\nnot done after {SECONDS} s"
    return done.returncode, done.stdout


def program(name: str, into: Path, url: str, *, scripted: bool, vectors: str, home: Path) -> Outcome:
    """A program of ours that uses the client."""
    script = PROGRAMS[name]
    environment = {"OCTAVO_URL": url, "OCTAVO_SCRIPTED": str(int(scripted)), "OCTAVO_VECTORS": vectors}
    if script.endswith(".mjs"):  # node looks for packages beside the file
        for source in (script, "told.mjs"):
            shutil.copy(HERE / "programs" / source, into / name / source)
        command = ["node", str(into / name / script)]
    else:
        command = [str(into / name / "bin" / "python"), str(HERE / "programs" / script)]
    code, said = start(command, environment, home)
    lines = said.splitlines()
    found = Outcome(
        passed=[line.removeprefix("ok: ") for line in lines if line.startswith("ok: ")],
        failed=[line.removeprefix("failed: ") for line in lines if line.startswith("failed: ")],
    )
    if code and not found.failed:
        found.failed.append(f"exit code {code}: {lines[-1] if lines else 'no output'}")
    return found


def runs(found: list[Run]) -> Outcome:
    """Commands one after the other."""
    outcome = Outcome()
    for run in found:
        code, said = start(run.command, run.environment, run.folder, run.typed)
        missing = [pattern for pattern in run.expects if not re.search(pattern, said)]
        if code or missing:
            last = " ".join(said.split())[-200:]
            outcome.failed.append(f"{run.what}: exit code {code}, without {missing}: {last}")
        else:
            outcome.passed.append(run.what)
    return outcome


def version(name: str, into: Path) -> str:
    """Of the client itself, as it is installed."""
    if name in NPM:
        package = NPM[name][0].rpartition("@")[0]
        return json.loads((into / name / "node_modules" / package / "package.json").read_text())["version"]
    package = re.split(r"[\[=]", PIP[name][0])[0]
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([into / name / "bin" / "python", "-c", ask], capture_output=True, text=True).stdout.strip()


def one(name: str, into: Path, url: str, *, scripted: bool, vectors: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if name in AGENTS:
            return runs(AGENTS[name](into / name / "node_modules" / ".bin", url, home))
        if name in EVALUATORS:
            return runs(EVALUATORS[name](into / name / "bin", url, home))
        return program(name, into, url, scripted=scripted, vectors=vectors, home=home)


def drive(names: list[str], into: Path, url: str, *, scripted: bool, vectors: str) -> bool:
    """Whether every check held. Each outcome is kept as soon as it is known."""
    held = True
    for name in names:
        began = time.monotonic()
        outcome = one(name, into, url, scripted=scripted, vectors=vectors)
        keep(into / KEPT, name, "scripted" if scripted else "real", outcome)
        held = held and not outcome.failed
        print(f"{name}: {len(outcome.passed)} passed, {len(outcome.failed)} failed, {time.monotonic() - began:.0f} s")
        for words in outcome.failed:
            print(f"  failed: {words}", flush=True)
    return held


TOLD = """
## How they are told where the server is

OpenAI's clients by `base_url` or `OPENAI_BASE_URL`, `http://HOST:PORT/v1`; Anthropic's by `ANTHROPIC_BASE_URL`,
`http://HOST:PORT`; Ollama's by `OLLAMA_HOST`, the same. Agents: `octavo launch` prints or writes it. What each was told
here stands in `bench/clients`. opencode and Qwen Code ask for thousands of tokens of output, which OpenAI's endpoints
refuse where the context has no room for them: a limit in their settings helps.
"""


def kept(file: Path) -> dict[str, dict[str, Outcome]]:
    """What is known, by client and kind."""
    stored = json.loads(file.read_text()) if file.exists() else {}
    return {name: {kind: Outcome(**found) for kind, found in kinds.items()} for name, kinds in stored.items()}


def keep(file: Path, name: str, kind: str, outcome: Outcome) -> None:
    """It replaces what was known of that client and kind."""
    known = kept(file)
    known.setdefault(name, {})[kind] = outcome
    plain = {name: {kind: asdict(found) for kind, found in kinds.items()} for name, kinds in known.items()}
    file.write_text(json.dumps(plain, indent=1))


def page(into: Path, known: dict[str, dict[str, Outcome]], model: str) -> str:
    lines = [
        "# Clients",
        "",
        "Clients that people use, as their registries have them, against running servers: `make clients` installs",
        "each in an environment of its own (some gigabytes), runs it, and writes this page. *Scripted*: a model that",
        f"does what it is told, so that whole loops over tools can be checked, word for word. *Real*: `{model}`, where",
        "the shapes of answers are checked; its template has no place for tools, so neither calls nor agents are asked",
        "of it.",
        "",
        "| client | version | scripted | real | checked |",
        "|---|---|---|---|---|",
    ]
    failures = []
    for name in (name for name in NAMES if name in known):
        checked = list(dict.fromkeys(words for outcome in known[name].values() for words in outcome.passed))
        sums = [_sum(known[name].get(kind)) for kind in ("scripted", "real")]
        lines.append(f"| {name} | {version(name, into)} | {' | '.join(sums)} | {', '.join(checked)} |")
        for kind, outcome in known[name].items():
            failures += [f"- {name}, {kind}: {words}" for words in outcome.failed]
    lines += [TOLD, "## What does not work", "", *(failures or ["Of the above, everything does."]), ""]
    return "\n".join(lines)


def _sum(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    return f"{len(outcome.passed)} of {len(outcome.passed) + len(outcome.failed)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="drives clients against running servers")
    parser.add_argument("--into", type=Path, default=Path(".clients"), help="folder of the environments")
    parser.add_argument("--real", default="", help="a model that programs run against too")
    parser.add_argument("--no-scripted", action="store_true", help="the real model alone")
    parser.add_argument("--write", action="store_true", help="write docs/clients.md")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="default: all that are installed")
    args = parser.parse_args()
    into = args.into.resolve()
    names = [name for name in args.names or NAMES if (into / name / "installed").exists()]
    found = (
        os.environ.get("PYTHONPATH", ""),
        str(ROOT / "tests" / "server"),
    )  # octavo itself: installed, or in the first
    python = {"PYTHONPATH": os.pathsep.join(filter(None, found))}
    held = True
    if not args.no_scripted:
        with serving([sys.executable, str(HERE / "server.py")], python) as url:
            held = drive(names, into, url, scripted=True, vectors="toy/vectors")
    if args.real:
        command = [sys.executable, "-m", "octavo.cli.main", "serve", args.real, "--port", "0"]
        with serving(command, python) as url:
            able = [name for name in names if name not in AGENTS]
            held = drive(able, into, url, scripted=False, vectors="") and held
    if args.write:
        written = page(into, kept(into / KEPT), args.real)
        (ROOT / "docs" / "clients.md").write_text(written, encoding="utf-8")
    raise SystemExit(not held)


if __name__ == "__main__":
    main()
