"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo.engine.outputs import PositionLogprobs, StreamDelta
from octavo.errors import RequestError
from octavo.server.call import Call, Choice, Prompt
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.openai.fields import read
from octavo.server.openai.job import Job
from octavo.server.openai.logprobs import LogprobWriter, Offsets
from octavo.server.openai.shapes import CompletionRequest, check_choices, read_prompts, sampling_params
from octavo.text.infill import Infill
from octavo.text.tokenizer import Tokenizer


class CompletionEndpoint(Endpoint):
    shape = CompletionRequest

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read(body, CompletionRequest)
        check_choices(asked)
        of_prompt = asked.logprobs if asked.echo and asked.logprobs is not None else asked.prompt_logprobs
        params = sampling_params(
            asked,
            max_tokens=asked.max_tokens,
            logprobs=asked.logprobs,
            prompt_logprobs=of_prompt,
        )
        await call.check_structure(params, asked.structure_field)
        given = read_prompts(asked.prompt, may_be_empty=bool(asked.suffix))
        if asked.suffix:
            infill = Infill(call.llm.tokenizer)
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *infill.stop_ids))
            prompts = await asyncio.to_thread(_around, infill, given, asked.suffix)
        else:
            prompts = await asyncio.to_thread(_prompts, call, given)
        fitted = [call.fit(params, len(prompt.ids), asked.max_tokens) for prompt in prompts]
        generation = call.generation(prompts, fitted, cache_key=asked.prompt_cache_key)
        style = CompletionStyle(call.llm.tokenizer, asked)
        await Job(generation, style, asked.stream, asked.told_usage, asked.return_progress).run(exchange)


def _prompts(call: Call, given: Sequence[str | list[int]]) -> list[Prompt]:
    return [
        Prompt(tuple(call.llm.tokenizer.encode(one, add_special=True, parse_special=True)), one)
        if isinstance(one, str)
        else Prompt(checked_ids(one, call.llm.info.vocab_size))
        for one in given
    ]


def _around(infill: Infill, given: Sequence[str | list[int]], suffix: str) -> list[Prompt]:
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) < len(given):
        raise RequestError("prompt: text where there is a suffix, not token ids", param="prompt")
    return [Prompt(tuple(infill.encode(text, suffix)), text) for text in texts]


def checked_ids(ids: Sequence[int], size: int) -> tuple[int, ...]:
    """Raises RequestError for what is no token of the vocabulary."""
    for token in ids:
        if not 0 <= token < size:
            raise RequestError(f"prompt: {token} is no token id of a vocabulary of {size}", param="prompt")
    return tuple(ids)


class CompletionStyle:
    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, asked: CompletionRequest) -> None:
        self._tokenizer = tokenizer
        self._writer = LogprobWriter(tokenizer, asked.logprobs or 0)
        self._asked = asked
        self._offsets: dict[int, Offsets] = {}

    def whole(self, choice: Choice) -> dict[str, Any]:
        shown = self._shown(choice, choice.text, choice.token_ids, choice.logprobs, opening=True)
        return shown | {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}

    def chunks(self, choice: Choice, delta: StreamDelta) -> list[dict[str, Any]]:
        shown = self._shown(choice, delta.text, delta.token_ids, delta.logprobs or (), opening=choice.fresh)
        return [shown | {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}]

    def extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {}

    def _shown(
        self, choice: Choice, text: str, ids: Sequence[int], logprobs: Sequence[PositionLogprobs], *, opening: bool
    ) -> dict[str, Any]:
        """A choice object for these tokens; the opening one holds what there is of the prompt."""
        prompt = choice.prompt
        shown: dict[str, Any] = {"index": choice.index}
        if opening and self._asked.return_token_ids:
            shown["prompt_token_ids"] = list(prompt.ids)
        if opening and choice.prompt_logprobs is not None and self._asked.prompt_logprobs is not None:
            shown["prompt_logprobs"] = self._writer.prompt(choice.prompt_logprobs)
        if self._asked.return_token_ids:
            shown["token_ids"] = list(ids)
        positions: list[PositionLogprobs | None] = list(logprobs)
        if opening and self._asked.echo:
            text = self._prompt_text(prompt) + text
            ids = [*prompt.ids, *ids]
            positions = [*(choice.prompt_logprobs or ()), *positions]
        return shown | {"text": text, "logprobs": self._logprobs(choice, ids, positions)}

    def _logprobs(
        self, choice: Choice, ids: Sequence[int], positions: Sequence[PositionLogprobs | None]
    ) -> dict[str, Any] | None:
        if self._asked.logprobs is None:
            return None
        offsets = self._offsets.setdefault(choice.index, Offsets(self._tokenizer, opening=self._asked.echo))
        return self._writer.text(positions, ids, offsets.of(ids))

    def _prompt_text(self, prompt: Prompt) -> str:
        return self._tokenizer.decode(prompt.ids) if prompt.text is None else prompt.text
