"""POST /api/chat, /api/generate, /api/embed, /api/embeddings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from octavo.errors import RequestError
from octavo.server.call import Call, Prompt, naming
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.ollama.answer import Answer, Heard, RawText, now
from octavo.server.ollama.prompt import chat_request
from octavo.server.ollama.shapes import ACCEPTED, EMBED_ACCEPTED, ChatBody, EmbedBody, EmbeddingsBody, GenerateBody
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.embeddings import first_numbers
from octavo.server.openai.fields import read
from octavo.server.openai.logprobs import LogprobWriter
from octavo.server.openai.shapes import ChatRequest, chat_logprobs, read_prompts, sampling_params

_OWN_NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
}


class OllamaEndpoint(Endpoint):
    """The model is `model`, or `name` in older clients; clients add a tag `:latest` to names without one."""

    def model_name(self, body: Mapping[str, Any]) -> str:
        name = body.get("model") or body.get("name")
        if not isinstance(name, str):
            raise RequestError("model is required", code="missing_field", param="model")
        return name.removesuffix(":latest")


class OllamaChat(OllamaEndpoint):
    shape = ChatBody

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, ChatBody, ACCEPTED)
        if not asked.messages:
            await exchange.answer(_loaded(call) | {"message": {"role": "assistant", "content": ""}})
            return
        request = chat_request(asked, call.llm.info.name, call.room)
        with naming(**_OWN_NAMES):
            conversation = await Conversation.of(call, request, cut=True)
        await _answer(conversation, call, request, chat=True).run(exchange, stream=asked.stream)


class OllamaGenerate(OllamaEndpoint):
    """A prompt is one message of a user; it is taken as it stands where `raw` says so or the model has no template."""

    shape = GenerateBody

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, GenerateBody, ACCEPTED)
        if not asked.prompt:
            await exchange.answer(_loaded(call) | {"response": ""})
            return
        request = chat_request(asked, call.llm.info.name, call.room)
        raw = asked.raw or call.llm.tokenizer.chat_template is None
        if raw and asked.system:
            raise RequestError("system: a raw prompt has no place for it", param="system")
        with naming(**_OWN_NAMES):
            heard: Heard = await (
                _raw(call, request, asked.prompt) if raw else Conversation.of(call, request, cut=True)
            )
        await _answer(heard, call, request, chat=False).run(exchange, stream=asked.stream)


async def _raw(call: Call, request: ChatRequest, text: str) -> RawText:
    params = sampling_params(request, max_tokens=request.max_tokens, logprobs=chat_logprobs(request))
    encode = call.llm.tokenizer.encode
    ids = tuple(await asyncio.to_thread(encode, text, add_special=True, parse_special=True))
    params = call.fit(params, len(ids), call.at_most(request.max_tokens, len(ids)))
    await call.check_structure(params, "format")
    return RawText(call.generation([Prompt(ids, text)], [params]))


def _answer(heard: Heard, call: Call, request: ChatRequest, *, chat: bool) -> Answer:
    writer = LogprobWriter(call.llm.tokenizer, request.top_logprobs or 0) if request.logprobs else None
    return Answer(heard, call.llm.info.name, chat=chat, logprobs=writer)


def _loaded(call: Call) -> dict[str, Any]:
    """The answer to nothing: the model is there."""
    return {"model": call.llm.info.name, "created_at": now(), "done": True, "done_reason": "load"}


class OllamaEmbed(OllamaEndpoint):
    shape = EmbedBody

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, EmbedBody, EMBED_ACCEPTED)
        began = time.perf_counter_ns()
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        with naming(prompt="input"):
            outputs = await call.embed(read_prompts(texts)) if texts else []
        answer = {
            "model": call.llm.info.name,
            "embeddings": [first_numbers(output.embedding, asked.dimensions) for output in outputs],
            "total_duration": time.perf_counter_ns() - began,
            "load_duration": 0,
            "prompt_eval_count": sum(len(output.prompt_token_ids) for output in outputs),
        }
        await exchange.answer(answer)


class OllamaEmbeddings(OllamaEndpoint):
    """The older form, of one text."""

    shape = EmbeddingsBody

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, EmbeddingsBody, EMBED_ACCEPTED)
        (output,) = await call.embed([asked.prompt])
        await exchange.answer({"embedding": output.embedding})
