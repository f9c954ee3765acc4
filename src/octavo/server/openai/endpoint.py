"""What the generating endpoints share: the way from an HTTP body to a running job."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from starlette.types import Receive, Scope, Send

from octavo.engine.inputs import check_structured
from octavo.errors import OctavoError, RequestError, UnsupportedError
from octavo.request import SamplingParams
from octavo.server.config import ServerConfig
from octavo.server.exchange import Exchange
from octavo.server.failures import HttpError
from octavo.server.openai.generation import Job, Prompt, Style, cache_salt
from octavo.server.openai.shapes import DEFAULT_MAX_TOKENS, Generation, fitting_tokens
from octavo.server.port import TextEngine
from octavo.server.state import ServerState

ALIAS = "default"  # names the served model, whatever it is


class Endpoint:
    """A POST endpoint as an ASGI app. Subclasses write `job`, or `work` where an answer is no stream of choices."""

    def __init__(self, llm: TextEngine, config: ServerConfig, state: ServerState) -> None:
        self.llm = llm
        self._config = config
        self._state = state

    async def job(self, body: Mapping[str, Any], tenant: str, request_id: str) -> Job:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._config)
        try:
            self._state.admit(self.llm)
            body = await exchange.read_json()
        except OctavoError as error:
            await exchange.fail(error)
            return
        await exchange.until_gone(self.work(exchange, body, scope["state"]["request_id"]))

    async def work(self, exchange: Exchange, body: Mapping[str, Any], request_id: str) -> None:
        job = await self.job(body, exchange.tenant, request_id)
        await job.run(exchange)

    def check_model(self, name: str) -> None:
        served = self.llm.info.name
        if name not in (served, ALIAS):
            message = f"the model {name[:128]!r} is not served here; served: {served} (or {ALIAS!r})"
            raise HttpError(404, "model_not_found", message, param="model")

    def fit(self, params: SamplingParams, prompt_tokens: int, wanted: int | None) -> SamplingParams:
        """With max_tokens resolved. Raises ContextLengthError, CapacityError, RequestError that name the field."""
        info = self.llm.info
        limit = min(info.max_model_len, info.kv_tokens)
        if prompt_tokens >= limit:
            info.check(prompt_tokens, wanted)
        max_tokens = fitting_tokens(wanted, prompt_tokens, limit, DEFAULT_MAX_TOKENS, "prompt")
        info.check(prompt_tokens, max_tokens)
        fitted = replace(params, max_tokens=max_tokens)
        fitted.check_vocabulary(info.vocab_size)
        check_structured(fitted)
        return fitted

    async def check_structure(self, asked: Generation, params: SamplingParams) -> None:
        """Before anything is answered. Raises RequestError, UnsupportedError that name the field."""
        if params.structure is not None:
            field = "structured_outputs" if asked.structured_outputs else "response_format"
            with self.naming(structure=field):
                await asyncio.to_thread(self.llm.check_structure, params.structure)

    def begin(
        self,
        asked: Generation,
        prompts: list[Prompt],
        params: Sequence[SamplingParams],
        style: Style,
        tenant: str,
        request_id: str,
    ) -> Job:
        return Job(
            llm=self.llm,
            model=self.llm.info.name,
            prompts=prompts,
            params=list(params),
            style=style,
            stream=asked.stream,
            include_usage=asked.include_usage,
            salt=cache_salt(tenant, asked.prompt_cache_key),
            tenant=tenant,
            request_id=request_id,
        )

    @contextmanager
    def naming(self, **fields: str) -> Iterator[None]:
        """Errors inside name the endpoint's own field for one of SamplingParams."""
        try:
            yield
        except (RequestError, UnsupportedError) as error:
            field = fields.get(error.param or "")
            if field is not None and field != error.param:
                error.message = re.sub(rf"^{error.param}\b", field, error.message)
                error.param = field
            raise
