"""Chat templates: messages to the prompt text of a model, and on to its ids.

A template is a program out of a model file. It runs in a child process with bounds on source, output, memory and
time (template_worker.py); a dry run at load refuses what cannot render. Templated text holds its own BOS, so it is
encoded without added specials; special tokens spelled inside a message stay plain text.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import BadFileError, RequestError
from octavo.text.messages import normalize
from octavo.text.template_process import TemplateFault, TemplateProcess
from octavo.text.tokenizer import Tokenizer

MAX_SOURCE = 256 << 10  # bytes
MAX_OUTPUT = 4 << 20  # characters
MAX_MEMORY = 512 << 20  # bytes of address space
MAX_SECONDS = 2.0
RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "chat_template"))


class ChatTemplate:
    """One template and its process, which starts at once; the dry run goes on beside whatever else loads.

    `check` waits for its verdict and raises BadFileError (bad_chat_template); so does the first render without it.
    Thread-safe; `close` ends the process.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "", where: str = "") -> None:
        """where: the file or folder that the source is from, for errors."""
        self._lock = threading.Lock()
        self._process: TemplateProcess | None = None
        self._unchecked = True
        self._where = where
        size = len(source.encode("utf-8", "surrogatepass"))
        if size > MAX_SOURCE:
            raise self._bad(f"{size} bytes, the limit is {MAX_SOURCE}")
        self._start = {
            "source": source,
            "globals": {"bos_token": bos_token, "eos_token": eos_token},
            "max_output": MAX_OUTPUT,
            "memory": MAX_MEMORY,
        }
        self._process = TemplateProcess(self._start)
        self._process.post(_variables([{"role": "user", "content": "Hello"}], None, True, {}))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that the tokenizer's files carry. Raises RequestError (no_chat_template) without one."""
        if tokenizer.chat_template is None:
            raise RequestError("this model has no chat template: use completions", code="no_chat_template")
        return cls(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token, tokenizer.where)

    @classmethod
    def started(cls, tokenizer: Tokenizer) -> ChatTemplate | None:
        """As `of`, None for a model without one: for engines, which start it before the weights and check it after."""
        return None if tokenizer.chat_template is None else cls.of(tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
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
        /,
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

    def check(self) -> None:
        """The verdict of the dry run. A template that refuses its messages by raise_exception can render."""
        with self._lock:
            if self._unchecked and self._process is not None:
                try:
                    reply = self._answer(self._process)
                except TemplateFault as fault:
                    raise self._bad(str(fault)) from None
                if "text" not in reply and reply["error"] != "Refused":
                    self._drop()
                    raise self._bad(f"{reply['error']}: {reply['message']}")
                self._unchecked = False
            elif self._unchecked:
                raise self._bad("it did not pass its dry run, or was closed before")

    def close(self) -> None:
        with self._lock:
            self._drop()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._drop()

    def _render(self, variables: dict[str, Any]) -> str:
        self.check()
        try:
            reply = self._ask(variables)
        except TemplateFault as fault:
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
            if self._process is not None and self._process.ended:  # while nobody asked: nobody's fault
                self._drop()
            if self._process is None:
                self._process = TemplateProcess(self._start)
            self._process.post(variables)
            return self._answer(self._process)

    def _answer(self, process: TemplateProcess) -> dict[str, Any]:
        """A process that was interrupted would give the next caller this caller's answer: it is dropped."""
        try:
            return process.answer(MAX_SECONDS)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _bad(self, what: str) -> BadFileError:
        place = f"{self._where}: " if self._where else ""
        return BadFileError(f"{place}chat template: {what}", code="bad_chat_template")


def check_options(options: Mapping[str, Any]) -> None:
    """Raises RequestError for names that are not the caller's to give, and for values that are no scalars."""
    for name, value in options.items():
        if name in RESERVED or not isinstance(value, (str, int, float, bool, type(None))):
            raise RequestError(
                f"chat_template_kwargs.{name}: only scalars, no reserved names", param="chat_template_kwargs"
            )


def _variables(
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    check_options(kwargs)
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
