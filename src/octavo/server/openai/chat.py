"""POST /v1/chat/completions: text, reasoning and tool calls, as the model's dialect spells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.outputs import PositionLogprobs, StreamDelta
from octavo.server.call import Call, Choice
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.fields import read
from octavo.server.openai.job import Job
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.shapes import ChatRequest, chat_logprobs
from octavo.text.dialects.dialect import Part, Said


class ChatEndpoint(Endpoint):
    shape = ChatRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, ChatRequest)
        conversation = await Conversation.of(call, asked)
        top = chat_logprobs(asked)
        writer = LogprobWriter(call.llm.tokenizer, top or 0)
        style = ChatStyle(writer, conversation, token_ids=asked.return_token_ids, logprobs=top is not None)
        await Job(conversation.generation, style, asked.stream, asked.told_usage, asked.return_progress).run(exchange)


class ChatStyle:
    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, writer: LogprobWriter, conversation: Conversation, *, token_ids: bool, logprobs: bool) -> None:
        self._writer = writer
        self._conversation = conversation
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._calls: dict[int, int] = {}  # per choice, how many

    def whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for part in self._conversation.heard(choice, choice.text):
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
        shown = [
            self._chunk(choice, self._spelled(choice, part)) for part in self._conversation.heard(choice, delta.text)
        ]
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

    def _spelled(self, choice: Choice, part: Part) -> dict[str, Any]:
        if isinstance(part, Said):
            return {"reasoning_content" if part.reasoning else "content": part.text}
        place = self._calls[choice.index] = self._calls.get(choice.index, -1) + 1
        function = {"name": part.name, "arguments": part.arguments}
        call = {"index": place, "id": self._conversation.call_id(), "type": "function", "function": function}
        return {"tool_calls": [call]}

    def _ending(self, choice: Choice) -> dict[str, Any]:
        reason = "tool_calls" if self._conversation.ended_in_calls(choice) else choice.finish_reason
        return {"finish_reason": reason, "stop_reason": choice.stop_reason}

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
