"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from octavo.errors import RequestError
from octavo.server.anthropic.answer import MessageWriter
from octavo.server.anthropic.prompt import chat_request
from octavo.server.anthropic.shapes import ACCEPTED, CountRequest, MessagesRequest
from octavo.server.call import Call, Outputs
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.face import named_event
from octavo.server.openai.conversation import Conversation, checked_tools, encoded
from octavo.server.openai.fields import read
from octavo.text.dialects.known import reasons


class MessagesEndpoint(Endpoint):
    """max_tokens is a limit, which may lie beyond what fits: the stop reason tells which of them was met."""

    shape = MessagesRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, MessagesRequest, ACCEPTED)
        if asked.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {asked.max_tokens}", param="max_tokens")
        request = chat_request(asked)
        if not reasons(call.llm.tokenizer.chat_template):
            request.thinking_budget = None  # a model without reasoning keeps every budget
        conversation = await Conversation.of(call, request, cut=True)
        hides = asked.thinking is not None and asked.thinking.display == "omitted"
        writer = MessageWriter(conversation, model=call.llm.info.name, limit=asked.max_tokens, hides_thoughts=hides)
        async with conversation.generation.running() as outputs:
            if asked.stream:
                await exchange.stream(_events(outputs, writer))
            else:
                (choice,) = await outputs.finished()
                await exchange.answer(writer.whole(choice, outputs.usage))


async def _events(outputs: Outputs, writer: MessageWriter) -> AsyncGenerator[bytes, None]:
    (choice,) = outputs.choices
    async with aclosing(outputs.deltas()) as deltas:
        async for _, delta in deltas:
            opening = writer.start(outputs.usage) if choice.fresh else []
            choice.fresh = False
            for event in [*opening, *writer.more(choice, delta.text)]:
                yield named_event(event)
    for event in writer.end(choice, outputs.usage):
        yield named_event(event)


class CountEndpoint(Endpoint):
    shape = CountRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = chat_request(read(body, CountRequest, ACCEPTED))
        ids = await encoded(call, asked, checked_tools(asked))
        await exchange.answer({"input_tokens": len(ids)})
