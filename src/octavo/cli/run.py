"""`octavo run MODEL [PROMPT]`: one answer, or a chat that keeps its history. Answers go to stdout as they are made."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cli import flags
from octavo.cli.screen import capacity_table, console, progress
from octavo.engine.llm import AsyncLLM
from octavo.request import SamplingParams

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    parser.add_argument("prompt", nargs="*", help="the question; without one and on a terminal: a chat")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="no chat template: continue the prompt as it stands")
    parser.add_argument("--verbose", action="store_true", help="print the capacity table")
    flags.add_flags(parser, flags.SAMPLING_FLAGS, "sampling")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    config = flags.engine_config(args)
    params = flags.sampling_params(args)
    prompt = " ".join(args.prompt) or ("" if sys.stdin.isatty() else sys.stdin.read())
    with progress("loading") as advance:
        llm = AsyncLLM(config, progress=advance)
    with asyncio.Runner() as runner:
        try:
            if args.verbose or not prompt:
                capacity_table(llm.info)
            talk = Conversation(llm, params, args.system, args.raw)
            return talk.once(runner, prompt) if prompt else talk.chat(runner)
        finally:
            llm.close()


@dataclass(slots=True)
class Speed:
    """Counts one answer. Times in seconds of a monotonic clock."""

    start: float
    first: float = 0.0
    end: float = 0.0
    prompt: int = 0
    cached: int = 0
    output: int = 0

    def line(self) -> str:
        wait = self.first - self.start
        rate = (self.output - 1) / (self.end - self.first) if self.output > 1 and self.end > self.first else 0.0
        return (
            f"[{self.prompt} prompt tokens ({self.cached} cached), first token after {wait:.2f} s; "
            f"{self.output} tokens at {rate:.0f} tok/s]"
        )


class Conversation:
    """A history of messages and the way to add an answer to it."""

    def __init__(self, llm: AsyncLLM, params: SamplingParams, system: str | None, raw: bool) -> None:
        self.llm, self.params, self.raw = llm, params, raw
        self.opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)

    def once(self, runner: asyncio.Runner, prompt: str) -> int:
        if self.raw:
            runner.run(self._answer(self.llm.tokenizer.encode(prompt, add_special=True)))
        else:
            self._turn(runner, prompt)
        return 0

    def chat(self, runner: asyncio.Runner) -> int:
        out = console(stderr=True)
        out.print(f"[dim]{_HELP}[/dim]")
        while True:
            try:
                text = input("> ").strip()
            except EOFError:
                out.print()
                return 0
            if text in ("/exit", "/quit"):
                return 0
            if text == "/reset":
                self.messages = list(self.opening)
                out.print("[dim]conversation forgotten[/dim]")
            elif text.startswith("/"):
                out.print(f"[dim]{_HELP}[/dim]")
            elif text:
                self._turn(runner, text)

    def _turn(self, runner: asyncio.Runner, text: str) -> None:
        """One question and its answer; Ctrl-C keeps what was said so far."""
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            runner.run(self._answer(self.llm.encode_chat(self.messages), said))
        except KeyboardInterrupt:
            print("\n[stopped]", file=sys.stderr)
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": "".join(said)})

    async def _answer(self, prompt_ids: Sequence[int], said: list[str] | None = None) -> None:
        speed = Speed(time.monotonic(), prompt=len(prompt_ids))
        async for delta in self.llm.stream(prompt_ids, self.params):
            speed.first = speed.first or time.monotonic()
            speed.output += len(delta.token_ids)
            speed.cached = delta.cached_tokens
            print(delta.text, end="", flush=True)
            if said is not None:
                said.append(delta.text)
        speed.end = time.monotonic()
        print()
        print(speed.line(), file=sys.stderr)
