"""A chat request in the engine: its prompt, its parameters, and how its outputs are heard.

Every face that speaks in messages makes a ChatRequest and has one of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from octavo.errors import RequestError, UnsupportedError
from octavo.request import Structure
from octavo.server.call import Call, Choice, Generation, Prompt, naming
from octavo.server.openai.shapes import NO_EFFORT, ChatRequest, chat_logprobs, chat_max_tokens, sampling_params
from octavo.server.openai.tools import Hearing, Tools, read_tools
from octavo.text.chat import check_options
from octavo.text.dialects import dialect
from octavo.text.dialects.dialect import Part, Said, Tool
from octavo.text.dialects.reader import Reader

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE_FIELDS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "reasoning")
)
_TEXTS = frozenset(("name", "tool_call_id", "refusal", "reasoning_content", "reasoning"))
_ANSWERED = frozenset(("annotations", "parsed"))  # what clients keep of an answer, and send back: nothing to a model
_PARTS = {"image_url": "images", "input_audio": "audio", "file": "files", "video_url": "videos"}


class Conversation:
    """generation: to be run. `heard` takes the text of its choices, in order, and gives parts."""

    def __init__(self, generation: Generation, hearing: Hearing) -> None:
        self.generation = generation
        self._hearing = hearing
        self._readers: dict[int, Reader | None] = {}  # per choice
        self._called: set[int] = set()

    @classmethod
    async def of(cls, call: Call, asked: ChatRequest, *, cut: bool = False) -> Conversation:
        """cut: max_tokens beyond what fits means what fits.

        Raises RequestError, UnsupportedError, ContextLengthError, CapacityError that name the field.
        """
        tools = checked_tools(asked)
        top = chat_logprobs(asked)
        field, wanted = chat_max_tokens(asked)
        hearing = Hearing(call.llm.tokenizer, tools)
        with naming(prompt="messages", max_tokens=field, logprobs="top_logprobs"):
            params = sampling_params(asked, max_tokens=wanted, logprobs=top, thinking_budget=asked.budget)
            ids = await encoded(call, asked, tools)
            params = call.fit(params, len(ids), call.at_most(wanted, len(ids)) if cut else wanted)
        await call.check_structure(params, asked.structure_field)
        if params.structure is not None or tools.binding:
            bound = await asyncio.to_thread(_bound, call, hearing, tools, ids, params.structure)
            params = replace(params, structure=bound)
        params = hearing.params(params)
        generation = call.generation([Prompt(tuple(ids))], [params], cache_key=asked.prompt_cache_key)
        return cls(generation, hearing)

    def heard(self, choice: Choice, text: str) -> list[Part]:
        """The parts of this text; with those that were held back once the choice has ended."""
        if choice.index not in self._readers:
            self._readers[choice.index] = self._hearing.reader(choice.prompt.ids)
        reader = self._readers[choice.index]
        if reader is None:
            return [Said(text)] if text else []
        parts = reader.push(text)
        if choice.finish_reason is not None:
            parts = parts + reader.finish()
        if any(isinstance(part, dialect.Call) for part in parts):
            self._called.add(choice.index)
        return parts

    def ended_in_calls(self, choice: Choice) -> bool:
        """It called tools and was not cut."""
        return choice.index in self._called and choice.finish_reason == "stop"

    def call_id(self) -> str:
        return self._hearing.call_id()


def _bound(
    call: Call, hearing: Hearing, tools: Tools, ids: Sequence[int], wanted: Structure | None
) -> Structure | None:
    """What the output must be, compiled. Schemas of tools that are not strict are let go where they cannot be.

    Raises RequestError, UnsupportedError that name a tool.
    """
    kept: list[Tool] = list(tools.callable)
    try:
        found = hearing.bound(ids, wanted, kept)
        if found is not None and found != wanted:
            call.llm.check_structure(found)
        return found
    except (RequestError, UnsupportedError) as error:
        for place, tool in enumerate(kept):
            try:
                alone = hearing.bound(ids, wanted, [tool])
                if alone is not None:
                    call.llm.check_structure(alone)
            except (RequestError, UnsupportedError) as reason:
                if tool.strict:
                    said = reason.message.removeprefix("form: ").removeprefix("tools: ")
                    if not said.startswith((f"{tool.name}:", f"{tool.name}.")):
                        said = f"{tool.name}: {said}"
                    raise type(reason)(f"tools: {said}", code=reason.code, param="tools") from None
                kept[place] = replace(tool, schema={})
        if kept == list(tools.callable):
            raise type(error)(error.message, code=error.code, param="tools") from None
    return hearing.bound(ids, wanted, kept)


def checked_tools(asked: ChatRequest) -> Tools:
    """Its tools; messages and options were looked at too. Raises RequestError, UnsupportedError that name the field."""
    check_messages(asked.messages)
    check_options(asked.chat_template_kwargs)
    return read_tools(asked)


async def encoded(call: Call, asked: ChatRequest, tools: Tools) -> list[int]:
    """Its prompt, whatever its length. Raises RequestError that names the messages."""
    options: dict[str, Any] = dict(asked.chat_template_kwargs)
    if asked.reasoning_effort is not None:  # templates that know two modes have either name
        thinks = asked.reasoning_effort != NO_EFFORT
        told = {"reasoning_effort": asked.reasoning_effort, "enable_thinking": thinks, "thinking": thinks}
        options = told | options
    if tools.declared:
        options["tools"] = tools.declared
    encode = partial(call.llm.encode_chat, asked.messages, add_generation_prompt=asked.add_generation_prompt, **options)
    return await asyncio.to_thread(encode)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises RequestError, UnsupportedError that name the message and its field."""
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise RequestError(f"messages: 1 to {MAX_MESSAGES} messages, not {len(messages)}", param="messages")
    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")


def _check_message(message: Mapping[str, Any], where: str) -> None:
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is one of {', '.join(ROLES)}, not {role!r}", param=f"{where}.role")
    for name, value in message.items():
        if name not in _MESSAGE_FIELDS and name not in _ANSWERED and value is not None:
            raise RequestError(f"unknown field {where}.{name}", code="unknown_field", param=f"{where}.{name}")
        if name in _TEXTS and value is not None and not isinstance(value, str):
            raise RequestError(f"{where}.{name} is a string", code="invalid_type", param=f"{where}.{name}")
    content = message.get("content")
    if content is None and role not in ("assistant", "tool"):
        raise RequestError(f"{where}.content is required", code="missing_field", param=f"{where}.content")
    if content is not None and not isinstance(content, (str, list)):
        raise RequestError(f"{where}.content is a string or a list of parts", param=f"{where}.content")
    if content == [] and role not in ("assistant", "tool"):
        raise RequestError(f"{where}.content is empty", param=f"{where}.content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _PARTS:
            at = f"{where}.content[{number}]"
            raise UnsupportedError(f"{at}: {_PARTS[kind]} are not supported, only text", param=at)
