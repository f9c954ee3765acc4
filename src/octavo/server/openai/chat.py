"""POST /v1/chat/completions: text, reasoning and tool calls, as the model's dialect spells them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.outputs import PositionLogprobs, StreamDelta
from octavo.errors import RequestError, UnsupportedError
from octavo.server.openai.endpoint import Endpoint
from octavo.server.openai.fields import read
from octavo.server.openai.generation import Choice, Job, Prompt
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.shapes import ChatRequest, chat_logprobs, chat_max_tokens, sampling_params
from octavo.server.openai.tools import Hearing, read_tools
from octavo.text.chat import check_options
from octavo.text.dialects.dialect import Part, Said
from octavo.text.dialects.reader import Reader

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE_FIELDS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "reasoning")
)
_PARTS = {"image_url": "images", "input_audio": "audio", "file": "files", "video_url": "videos"}


class ChatEndpoint(Endpoint):
    async def job(self, body: Mapping[str, Any], tenant: str, request_id: str) -> Job:
        asked = read(body, ChatRequest)
        self.check_model(asked.model)
        check_messages(asked.messages)
        top = chat_logprobs(asked)
        field, wanted = chat_max_tokens(asked)
        check_options(asked.chat_template_kwargs)
        tools = read_tools(asked)
        hearing = Hearing(self.llm.tokenizer, tools)
        options: dict[str, Any] = dict(asked.chat_template_kwargs)
        if asked.reasoning_effort is not None:
            options["reasoning_effort"] = asked.reasoning_effort
        if tools.declared:
            options["tools"] = tools.declared
        with self.naming(prompt="messages", max_tokens=field, logprobs="top_logprobs"):
            params = hearing.params(sampling_params(asked, max_tokens=wanted, logprobs=top))
            ids = await asyncio.to_thread(self._encode, asked, options)
            params = self.fit(params, len(ids), wanted)
        if params.structure is not None and tools.schemas:
            raise UnsupportedError(
                "response_format: not together with tools that may be called", param="response_format"
            )
        await self.check_structure(asked, params)
        writer = LogprobWriter(self.llm.tokenizer, top or 0)
        style = ChatStyle(writer, hearing, token_ids=asked.return_token_ids, logprobs=top is not None)
        return self.begin(asked, [Prompt(tuple(ids))], [params], style, tenant, request_id)

    def _encode(self, asked: ChatRequest, options: Mapping[str, Any]) -> list[int]:
        return self.llm.encode_chat(asked.messages, add_generation_prompt=asked.add_generation_prompt, **options)


class ChatStyle:
    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, writer: LogprobWriter, hearing: Hearing, *, token_ids: bool, logprobs: bool) -> None:
        self._writer = writer
        self._hearing = hearing
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._readers: dict[int, Reader | None] = {}  # per choice
        self._calls: dict[int, int] = {}  # per choice, how many

    def whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for part in self._heard(choice, choice.text):
            for name, value in self._spelled(choice, part).items():
                message[name] = value if message.get(name) is None else message[name] + value
        for call in message.get("tool_calls", ()):
            del call["index"]
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        shown = {"index": choice.index, "message": message, "logprobs": self._shown(choice.logprobs)}
        shown |= self._ending(choice)
        return shown | ({"token_ids": choice.token_ids} if self._token_ids else {})

    def chunks(self, choice: Choice, delta: StreamDelta) -> list[dict[str, Any]]:
        shown = [self._chunk(choice, self._spelled(choice, part)) for part in self._heard(choice, delta.text)]
        if delta.token_ids and (self._logprobs or self._token_ids):
            more: dict[str, Any] = {"logprobs": self._shown(delta.logprobs or ())}
            if self._token_ids:
                more["token_ids"] = list(delta.token_ids)
            first = shown[0] if shown else self._chunk(choice, {"content": ""})
            shown = [first | more, *shown[1:]]
        if choice.fresh:
            shown.insert(0, self._chunk(choice, {"role": "assistant", "content": ""}))
        if choice.finish_reason is not None:
            shown.append(self._chunk(choice, {}) | self._ending(choice))
        return shown

    def _heard(self, choice: Choice, text: str) -> list[Part]:
        """The parts of this text; those of the whole output once it has ended."""
        if choice.index not in self._readers:
            self._readers[choice.index] = self._hearing.reader(choice.prompt.ids)
        reader = self._readers[choice.index]
        if reader is None:
            return [Said(text)] if text else []
        parts = reader.push(text)
        return parts + reader.finish() if choice.finish_reason is not None else parts

    def _spelled(self, choice: Choice, part: Part) -> dict[str, Any]:
        if isinstance(part, Said):
            return {"reasoning_content" if part.reasoning else "content": part.text}
        place = self._calls[choice.index] = self._calls.get(choice.index, -1) + 1
        function = {"name": part.name, "arguments": part.arguments}
        call = {"index": place, "id": self._hearing.call_id(), "type": "function", "function": function}
        return {"tool_calls": [call]}

    def _ending(self, choice: Choice) -> dict[str, Any]:
        called = choice.index in self._calls and choice.finish_reason == "stop"
        return {"finish_reason": "tool_calls" if called else choice.finish_reason, "stop_reason": choice.stop_reason}

    def extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        more: dict[str, Any] = {}
        for choice in choices:
            if choice.prompt_logprobs is not None:
                more["prompt_logprobs"] = self._writer.prompt(choice.prompt_logprobs)
        return more | ({"prompt_token_ids": list(choices[0].prompt.ids)} if self._token_ids else {})

    def _chunk(self, choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _shown(self, logprobs: Sequence[PositionLogprobs]) -> dict[str, Any] | None:
        return self._writer.chat(logprobs) if self._logprobs else None


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
        if name not in _MESSAGE_FIELDS and value is not None:
            raise RequestError(f"unknown field {where}.{name}", code="unknown_field", param=f"{where}.{name}")
    content = message.get("content")
    if content is None and role not in ("assistant", "tool"):
        raise RequestError(f"{where}.content is required", code="missing_field", param=f"{where}.content")
    if content is not None and not isinstance(content, (str, list)):
        raise RequestError(f"{where}.content is a string or a list of parts", param=f"{where}.content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _PARTS:
            at = f"{where}.content[{number}]"
            raise UnsupportedError(f"{at}: {_PARTS[kind]} are not supported, only text", param=at)
