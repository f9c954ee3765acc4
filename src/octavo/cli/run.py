"""`octavo run MODEL [PROMPT]`: one answer, or a chat that keeps its history. Answers go to stdout as they are made."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cli import flags
from octavo.cli.screen import capacity_table, console, load_notes, progress
from octavo.engine.course import NO_DRAFTS, Drafts
from octavo.engine.llm import AsyncLLM
from octavo.errors import BadFileError, EngineError, RequestError, UsageError
from octavo.request import SamplingParams
from octavo.weights import fetch

with contextlib.suppress(ImportError):  # line editing and history at the prompt, where Python has it
    import readline  # noqa: F401

INTERRUPTED = 130
_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
Message = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("model", help="a name (smollm2:135m), a GGUF file or a safetensors folder")
    parser.add_argument(
        "prompt", nargs="*", default=[], help="the question; without one: what stdin holds, or a chat on a terminal"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="no chat template: continue the prompt as it stands")
    parser.add_argument("--verbose", action="store_true", help="print the capacity table")
    flags.add_flags(parser, flags.SAMPLING_FLAGS, "sampling")
    flags.add_flags(parser, flags.ENGINE_FLAGS, "engine")


def run(args: argparse.Namespace) -> int:
    config = flags.engine_config(args)
    params = flags.sampling_params(args)
    fetch.resolve(config.model)  # an absent model is said before stdin is waited for
    prompt = _prompt(args)
    with progress("loading") as advance:
        llm = AsyncLLM(config, progress=advance)
    with asyncio.Runner() as runner:
        try:
            if args.verbose or not prompt:
                capacity_table(llm.info)
            else:
                load_notes(llm.info)
            talk = Conversation(llm, params, args.system)
            if not prompt:
                return talk.chat(runner)
            return talk.continue_raw(runner, prompt) if args.raw else talk.once(runner, prompt)
        finally:
            llm.close()


def _prompt(args: argparse.Namespace) -> str:
    """From the arguments, else from stdin; empty for a chat, which needs a terminal."""
    if args.raw and args.system:
        raise UsageError("octavo run: --system belongs to the chat template, which --raw leaves out")
    if args.prompt:
        prompt = " ".join(args.prompt)
        if not prompt.strip():
            raise UsageError("octavo run: the prompt is empty; without one, a chat opens on a terminal")
        return prompt
    if sys.stdin.isatty():
        if args.raw:
            raise UsageError("octavo run: --raw needs a prompt; a chat needs the template")
        return ""
    data = sys.stdin.buffer.read()
    try:
        prompt = data.decode()
    except UnicodeDecodeError as error:
        raise BadFileError(f"stdin: not UTF-8 (offset {error.start})", code="bad_text") from None
    if not prompt.strip():
        raise UsageError("octavo run: no prompt: give one as an argument or on stdin; on a terminal, a chat opens")
    return prompt


@dataclass(slots=True)
class Speed:
    """Counts one answer. Times in seconds of a monotonic clock."""

    start: float
    first: float = 0.0
    end: float = 0.0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    opening: int = 0  # tokens that came with the first
    drafts: Drafts = NO_DRAFTS

    def line(self) -> str:
        wait, later = self.first - self.start, self.output - self.opening
        rate = f" at {later / (self.end - self.first):.0f} tok/s" if later else ""
        return (
            f"[{self.prompt} prompt tokens ({self.cached} cached), first token after {wait:.2f} s; "
            f"{self.output} tokens{rate}{self._drafted()}]"
        )

    def _drafted(self) -> str:
        drafts = self.drafts
        if not drafts.proposed:
            return ""
        return f"; {drafts.accepted} of {drafts.proposed} drafts accepted, {drafts.length:.2f} tokens a step with any"


class Conversation:
    """A history of messages and the way to add an answer to it."""

    def __init__(self, llm: AsyncLLM, params: SamplingParams, system: str | None) -> None:
        self.llm, self.params = llm, params
        self.opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)

    def once(self, runner: asyncio.Runner, prompt: str) -> int:
        return 0 if self._turn(runner, prompt) else INTERRUPTED

    def continue_raw(self, runner: asyncio.Runner, prompt: str) -> int:
        runner.run(self._answer(self.llm.tokenizer.encode(prompt, add_special=True), []))
        return 0

    def chat(self, runner: asyncio.Runner) -> int:
        """Until the end of input. What a turn is refused for is said, and the chat goes on."""
        out = console(stderr=True)
        out.print(_HELP, style="dim")
        while True:
            try:
                text = input("> ").strip()
            except EOFError:
                out.print()
                return 0
            except KeyboardInterrupt:  # drops the line
                out.print()
                continue
            if text in ("/exit", "/quit", "/bye"):
                return 0
            if text == "/reset":
                self.messages = list(self.opening)
                out.print("conversation forgotten", style="dim")
            elif text.startswith("/"):
                out.print(_HELP, style="dim")
            elif text:
                try:
                    self._turn(runner, text)
                except RequestError as error:
                    out.print(error.line())

    def _turn(self, runner: asyncio.Runner, text: str) -> bool:
        """One question and its answer. False when Ctrl-C stopped it: what was said so far stays in the history."""
        asked = [*self.messages, {"role": "user", "content": text}]
        said: list[str] = []
        finished = True
        try:
            runner.run(self._answer(self.llm.encode_chat(asked), said))
        except KeyboardInterrupt:
            print("\n[stopped]", file=sys.stderr)
            finished = False
        self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]
        return finished

    async def _answer(self, prompt_ids: Sequence[int], said: list[str]) -> None:
        """Prints the answer as it comes; its pieces are added to `said`. Raises EngineError when it breaks off."""
        speed = Speed(time.monotonic(), prompt=len(prompt_ids))
        async for delta in self.llm.stream(prompt_ids, self.params):
            speed.first = speed.first or time.monotonic()
            speed.output += len(delta.token_ids)
            speed.opening = speed.opening or speed.output
            speed.cached, speed.drafts = delta.cached_tokens, delta.drafts
            print(delta.text, end="", flush=True)
            said.append(delta.text)
            if delta.finish_reason == "error":
                print()
                raise EngineError(str(delta.stop_reason))
        speed.end = time.monotonic()
        print()
        print(speed.line(), file=sys.stderr)
