"""What POST routes share: a body read within bounds, the model that it names, work that ends with its client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.admission import Admission, Ticket
from octavo.server.call import Call
from octavo.server.config import ServerConfig
from octavo.server.deadlines import Deadlines
from octavo.server.exchange import Exchange
from octavo.server.models import ALIAS, Models
from octavo.server.observer import Observer
from octavo.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Service:
    """What every endpoint is given."""

    models: Models
    config: ServerConfig
    state: ServerState
    admission: Admission
    observer: Observer


class Endpoint:
    """A POST endpoint as an ASGI app. Subclasses write `work`, and `model_name` where a body names it otherwise.

    shape: of its bodies, for the document of the interface.
    """

    shape: ClassVar[type[msgspec.Struct] | None] = None

    def __init__(self, service: Service) -> None:
        self.service = service

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        """Answers the exchange; an OctavoError that is raised becomes the answer."""
        raise NotImplementedError

    def model_name(self, body: Mapping[str, Any]) -> str:
        """Bodies without a name go on with the first model, to be refused when they are read."""
        name = body.get("model")
        return name if isinstance(name, str) else ALIAS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self.service.config)
        try:
            self.service.state.admit(self.service.models)
            ticket = self.service.admission.arrive(exchange.tenant)
        except OctavoError as error:
            await exchange.fail(error)
            return
        with ticket, self.service.state.running(exchange):
            try:
                body = await exchange.read_json()
            except OctavoError as error:
                await exchange.fail(error)
                return
            with Deadlines(self.service.config, exchange, ticket):
                await exchange.until_gone(self._bound(exchange, body, ticket))

    async def _bound(self, exchange: Exchange, body: Mapping[str, Any], ticket: Ticket) -> None:
        async with self.service.models.use(self.model_name(body)) as llm:
            seen = self.service.observer.engine(llm, exchange.scope)
            await self.work(exchange, body, Call(seen, exchange.tenant, exchange.request_id, ticket))
