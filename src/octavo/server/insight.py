"""GET /metrics, GET /v1/requests and /v1/requests/{id}: what the server knows of itself and of a key's own requests."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from octavo.server.endpoint import Service
from octavo.server.exchange import Exchange, headers_of
from octavo.server.failures import HttpError
from octavo.server.metrics import Metrics
from octavo.server.records import described, summary


class Insight:
    def __init__(self, service: Service) -> None:
        self._config = service.config
        self._records = service.observer.records
        self._metrics = Metrics(service.models, service.observer.tally, service.config.metrics_alias)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._config)
        if scope["path"] == "/metrics":
            body, kind = await asyncio.to_thread(self._metrics.page, headers_of(scope).get("accept", ""))
            await exchange.answer_bytes(body, kind)
        elif "request" in scope["path_params"]:
            await self._one(exchange, scope["path_params"]["request"])
        else:
            shown = [summary(record) for record in self._records.of(exchange.tenant)]
            await exchange.answer({"object": "list", "data": shown})

    async def _one(self, exchange: Exchange, request_id: str) -> None:
        record = self._records.find(exchange.tenant, request_id)
        if record is None:
            message = f"no request {request_id[:64]!r} of this key is known: the last ones that ended are kept"
            await exchange.fail(HttpError(404, "request_not_found", message))
        else:
            await exchange.answer(described(record))
