"""/tokenize, /detokenize, /tokenizer_info, in vLLM's shapes: the very ids that a completion or a chat runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError, RequestError
from octavo.server.call import Call, naming
from octavo.server.endpoint import Endpoint, Service
from octavo.server.exchange import Exchange
from octavo.server.models import ALIAS
from octavo.server.openai.completions import checked_ids
from octavo.server.openai.conversation import checked_tools, encoded
from octavo.server.openai.fields import Accepted, read
from octavo.server.openai.logprobs import token_text
from octavo.server.openai.shapes import ChatRequest


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """add_special_tokens: of a prompt; a template writes its own."""

    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str = ""


ACCEPTED: Accepted = {"continue_final_message": lambda value: value is False}


class TokenizeEndpoint(Endpoint):
    shape = TokenizeRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, TokenizeRequest, ACCEPTED)
        if (asked.prompt is None) == (asked.messages is None):
            raise RequestError("exactly one of prompt and messages", param="prompt", code="missing_field")
        ids = await (_of_prompt(call, asked) if asked.messages is None else _of_messages(call, asked))
        pieces = call.llm.tokenizer.pieces
        shown = [token_text(pieces.piece(token)) for token in ids] if asked.return_token_strs else None
        answer = {"count": len(ids), "max_model_len": call.room, "tokens": ids, "token_strs": shown}
        await exchange.answer(answer)


async def _of_prompt(call: Call, asked: TokenizeRequest) -> list[int]:
    special = asked.add_special_tokens is not False
    encode = partial(call.llm.tokenizer.encode, asked.prompt or "", add_special=special, parse_special=True)
    return await asyncio.to_thread(encode)


async def _of_messages(call: Call, asked: TokenizeRequest) -> list[int]:
    if asked.add_special_tokens:
        raise RequestError("add_special_tokens: a chat template writes its own", param="add_special_tokens")
    chat = ChatRequest(
        model=asked.model,
        messages=asked.messages or [],
        tools=asked.tools,
        add_generation_prompt=asked.add_generation_prompt,
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    return await encoded(call, chat, checked_tools(chat))


class DetokenizeEndpoint(Endpoint):
    """Special tokens are shown."""

    shape = DetokenizeRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, DetokenizeRequest)
        with naming(prompt="tokens"):
            ids = checked_ids(asked.tokens, call.llm.info.vocab_size)
        await exchange.answer({"prompt": call.llm.tokenizer.decode(ids, skip_special=False)})


class TokenizerInfo:
    """What evaluators ask before they count by /tokenize. The model is the first, or `?model=NAME`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.config)
        try:
            async with self._service.models.use(QueryParams(scope["query_string"]).get("model", ALIAS)) as llm:
                tokenizer = llm.tokenizer
        except OctavoError as error:
            await exchange.fail(error)
            return
        answer = {
            "tokenizer_class": "Octavo",
            "bos_token": tokenizer.bos_token or None,
            "eos_token": tokenizer.eos_token or None,
            "chat_template": tokenizer.chat_template,
        }
        await exchange.answer(answer)
