"""Chat templates: messages to the prompt text of a model, and on to its ids.

A template is a program out of a model file. It runs in a child process with bounds on source, output, memory and
time (template_worker.py); a dry run at load refuses what cannot render. Templated text holds its own BOS, so it is
encoded without added specials; special tokens spelled inside a message stay plain text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import BadFileError, RequestError, ResourceError
from octavo.text.messages import normalize
from octavo.text.tokenizer import Tokenizer

MAX_SOURCE = 256 << 10  # bytes
MAX_OUTPUT = 4 << 20  # characters
MAX_MEMORY = 512 << 20  # bytes of address space
MAX_SECONDS = 2.0
START_SECONDS = 20.0  # for the interpreter to come up on a busy machine
_WORKER = Path(__file__).with_name("template_worker.py")
_RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"))


class _WorkerFault(Exception):
    """The worker was killed or died."""


class _Worker:
    """One child process and the frames to and from it. Not thread-safe."""

    def __init__(self, start: dict[str, Any]) -> None:
        command = [sys.executable, "-P", str(_WORKER)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is not for it; it ends with its input
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._unsent = bytearray(_frame(start))
        self._ready = False

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request. The clock starts when the interpreter is up. Raises _WorkerFault."""
        if not self._ready:
            self._receive(START_SECONDS)
            self._ready = True
        self._unsent += _frame(request)
        return self._receive(MAX_SECONDS)

    def _receive(self, seconds: float) -> dict[str, Any]:
        """One frame, while the unsent bytes go out."""
        answer = bytearray()
        deadline = time.monotonic() + seconds
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from("<I", answer)[0]:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _WorkerFault(f"no result after {seconds:g} s")
            readable, writable, _ = select.select([self._stdout], [self._stdin] if self._unsent else [], [], left)
            try:
                if writable:
                    del self._unsent[: os.write(self._stdin, self._unsent[: 1 << 16])]
                data = os.read(self._stdout, 1 << 16) if readable else None
            except OSError:
                data = b""
            if data == b"":
                raise _WorkerFault("its process ended")
            answer += data or b""
        reply: dict[str, Any] = json.loads(answer[4:])
        return reply

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _frame(value: dict[str, Any]) -> bytes:
    data = json.dumps(value).encode()
    return struct.pack("<I", len(data)) + data


class ChatTemplate:
    """A template that passed its dry run. Thread-safe; `close` ends its process.

    Raises BadFileError (bad_chat_template) at construction.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MAX_SOURCE:
            raise _bad(f"{size} bytes, the limit is {MAX_SOURCE}")
        self._start = {
            "source": source,
            "globals": {"bos_token": bos_token, "eos_token": eos_token},
            "max_output": MAX_OUTPUT,
            "memory": MAX_MEMORY,
        }
        self._dry_run()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that the tokenizer's files carry. Raises RequestError (no_chat_template) without one."""
        if tokenizer.chat_template is None:
            raise RequestError("this model has no chat template: use completions", code="no_chat_template")
        return cls(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: str | int | float | bool | None,
    ) -> str:
        """The prompt text. kwargs are scalars for the template (such as enable_thinking).

        Raises RequestError when the template refuses the messages or exceeds its bounds.
        """
        return self._render(_variables(normalize(messages), tools, add_generation_prompt, kwargs))

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: str | int | float | bool | None,
    ) -> list[int]:
        """The prompt ids: the template's special tokens are tokens, those that a message spells are plain text."""
        variables = _variables(normalize(messages), tools, add_generation_prompt, kwargs)
        texts = tokenizer.special_texts
        pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None
        mark = f"\ufdd0{secrets.token_hex(8)}\ufdd1"
        if pattern is not None:
            variables = _quote(variables, pattern, mark)
        ids: list[int] = []
        for place, text in enumerate(self._render(variables).split(mark)):
            if text:
                ids += tokenizer.encode(text, parse_special=place % 2 == 0)
        return ids

    def close(self) -> None:
        with self._lock:
            self._drop()

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self._drop()

    def _dry_run(self) -> None:
        try:
            reply = self._ask(_variables([{"role": "user", "content": "Hello"}], None, True, {}))
        except _WorkerFault as fault:
            raise _bad(str(fault)) from None
        if "text" not in reply and reply["error"] != "Refused":
            self.close()
            raise _bad(f"{reply['error']}: {reply['message']}")

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            reply = self._ask(variables)
        except _WorkerFault as fault:
            raise RequestError(
                f"the chat template was stopped: {fault}", code="template_limit", param="messages"
            ) from None
        if "text" in reply:
            text: str = reply["text"]
            return text
        said = reply["message"] if reply["error"] == "Refused" else f"{reply['error']}: {reply['message']}"
        raise RequestError(f"the chat template refused the messages: {said}", code="template_error", param="messages")

    def _ask(self, variables: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                if self._worker is None:
                    self._worker = _Worker(self._start)
                return self._worker.ask(variables)
            except _WorkerFault:
                self._drop()
                raise
            except OSError as error:
                raise ResourceError(f"the chat template's process cannot start: {error.strerror}") from None

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _bad(what: str) -> BadFileError:
    return BadFileError(f"chat template: {what}", code="bad_chat_template")


def _variables(
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    for name, value in kwargs.items():
        if name in _RESERVED or not isinstance(value, (str, int, float, bool, type(None))):
            raise RequestError(
                f"chat_template_kwargs.{name}: only scalars, no reserved names", param="chat_template_kwargs"
            )
    variables = {"messages": messages, "add_generation_prompt": add_generation_prompt, **kwargs}
    return variables | ({"tools": list(tools)} if tools else {})


def _quote(value: Any, pattern: re.Pattern[str], mark: str) -> Any:
    """The same data with each special token's spelling between two marks."""
    if isinstance(value, str):
        return pattern.sub(lambda match: f"{mark}{match[0]}{mark}", value)
    if isinstance(value, Mapping):
        return {key: inner if key == "role" else _quote(inner, pattern, mark) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quote(inner, pattern, mark) for inner in value]
    return value
