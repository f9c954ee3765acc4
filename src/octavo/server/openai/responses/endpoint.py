"""POST /v1/responses, and the routes of one response: GET, DELETE, POST cancel, GET input_items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError, RequestError
from octavo.server.call import Call, Generation, Outputs
from octavo.server.endpoint import Endpoint, Service
from octavo.server.exchange import Exchange
from octavo.server.face import named_event
from octavo.server.failures import HttpError, internal_error
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.responses.answer import Answer
from octavo.server.openai.responses.items import messages_of, read_items
from octavo.server.openai.responses.shapes import (
    ResponseRequest,
    chat_request,
    functions_of,
    own_names,
    read_response,
)
from octavo.server.openai.responses.store import MAX_RUNNING, Kept, ResponseStore, Shelf, Tape
from octavo.server.openai.responses.writer import Event


@dataclass(slots=True)
class Turn:
    """One request for a response: what was asked, its answer to be, and where that is kept."""

    asked: ResponseRequest
    answer: Answer
    kept: Kept
    shelf: Shelf

    async def events(self, outputs: Outputs) -> AsyncGenerator[Event, None]:
        """All of them; what is to be kept is kept before the last."""
        async with aclosing(self.answer.events(outputs)) as events:
            async for event in events:
                yield event
        self.keep()
        yield self.answer.ended()

    def keep(self) -> None:
        if self.asked.store:
            self.answer.response["store"] = self.shelf.put(self.kept)


class ResponseEndpoint(Endpoint):
    shape = ResponseRequest

    def __init__(self, service: Service, store: ResponseStore) -> None:
        super().__init__(service)
        self._store = store

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        asked = read_response(body)
        if asked.input is None and asked.previous_response_id is None:
            raise RequestError("input is required", code="missing_field", param="input")
        shelf = self._store.of(exchange.tenant)
        before = [] if asked.previous_response_id is None else shelf.conversation(asked.previous_response_id)
        items = read_items([] if asked.input is None else asked.input, shelf.item)
        functions = functions_of(asked.tools)
        messages = messages_of([*before, *items], asked.instructions)
        with own_names(functions):
            conversation = await Conversation.of(call, chat_request(asked, messages, functions))
        answer = Answer(asked, conversation, functions)
        turn = Turn(asked, answer, Kept(answer.response, items, asked.previous_response_id), shelf)
        if asked.background:
            await self._begin(exchange, turn, conversation.generation, self.model_name(body))
            return
        async with conversation.generation.running() as outputs:
            if asked.stream:
                await exchange.stream(_bytes(turn.events(outputs)))
            else:
                async with aclosing(turn.events(outputs)) as events:
                    async for _ in events:
                        pass
                if answer.response["status"] == "failed":
                    raise OctavoError(answer.response["error"]["message"])
                await exchange.answer(answer.response)

    async def _begin(self, exchange: Exchange, turn: Turn, generation: Generation, model: str) -> None:
        """Answers at once; the response goes on by itself, and ends with the server at the latest."""
        kept, held = turn.kept, asyncio.Event()
        if turn.shelf.running >= MAX_RUNNING:
            message = f"{MAX_RUNNING} responses run in the background already: wait, or cancel one"
            raise HttpError(429, "too_many_running", message, param="background")
        kept.tape = Tape() if turn.asked.stream else None
        if not turn.shelf.put(kept):
            raise RequestError("background: the input is larger than what can be kept", param="background")
        try:
            ticket = self.service.admission.arrive(exchange.tenant, goes_on=True)  # outlives this request's own
        except HttpError:
            turn.shelf.drop(kept.response["id"])
            raise
        generation = replace(generation, call=replace(generation.call, ticket=ticket))
        kept.task = asyncio.create_task(self._run(turn, generation, model, held))
        await held.wait()
        if kept.tape is not None:
            await exchange.stream(kept.tape.read(0))
        else:
            await exchange.answer(kept.response)

    async def _run(self, turn: Turn, generation: Generation, model: str, held: asyncio.Event) -> None:
        answer, kept = turn.answer, turn.kept
        try:
            with generation.call.ticket:
                async with self.service.models.use(model), generation.running() as outputs:
                    held.set()
                    async with aclosing(answer.events(outputs)) as events:
                        async for event in events:
                            if kept.tape is not None:
                                kept.tape.add(named_event(event))
        except asyncio.CancelledError:
            answer.cancelled()
        except OctavoError as error:
            answer.fail(error)
        except Exception:
            answer.fail(internal_error())
            raise
        finally:
            held.set()
            kept.task = None
            if kept.tape is not None:
                kept.tape.add(named_event(answer.ended()))
                kept.tape.end()
            turn.shelf.weigh(kept)


async def _bytes(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield named_event(event)


def response_routes(service: Service) -> list[Route]:
    store = ResponseStore()
    kept = ResponseRoutes(service, store)
    return [
        Route("/v1/responses", ResponseEndpoint(service, store), methods=["POST"]),
        Route("/v1/responses/{response}", kept, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response}/cancel", kept, methods=["POST"]),
        Route("/v1/responses/{response}/input_items", kept, methods=["GET"]),
    ]


class ResponseRoutes:
    """What can be done with a response that is kept, by the tenant whose it is."""

    def __init__(self, service: Service, store: ResponseStore) -> None:
        self._service = service
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.config)
        await exchange.until_gone(self._route(exchange, scope))

    async def _route(self, exchange: Exchange, scope: Scope) -> None:
        name: str = scope["path_params"]["response"]
        shelf = self._store.of(exchange.tenant)
        kept = shelf.get(name)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if scope["path"].endswith("/cancel"):
            await exchange.answer(await _cancelled(kept))
        elif scope["path"].endswith("/input_items"):
            await exchange.answer(_listed(shelf, kept, query))
        elif scope["method"] == "DELETE":
            if kept.task is not None:
                await _cancelled(kept)
            shelf.drop(name)
            await exchange.answer({"id": name, "object": "response", "deleted": True})
        elif query.get("stream") == "true":
            await _replay(exchange, kept, query)
        else:
            await exchange.answer(kept.response)


async def _cancelled(kept: Kept) -> dict[str, Any]:
    """The response, which runs no more. One that has ended stays as it is."""
    if not kept.response["background"]:
        raise RequestError("only responses that run in the background can be cancelled")
    task = kept.task
    if task is not None:
        task.cancel()
        await asyncio.wait((task,))
    return kept.response


async def _replay(exchange: Exchange, kept: Kept, query: Mapping[str, str]) -> None:
    if kept.tape is None:
        raise RequestError("only responses with background and stream can be streamed again", param="stream")
    await exchange.stream(kept.tape.read(_number(query, "starting_after", -1, 1 << 31) + 1))


def _listed(shelf: Shelf, kept: Kept, query: Mapping[str, str]) -> dict[str, Any]:
    """The items that made the response, those of the responses before it included; the newest first unless asked."""
    before = [] if kept.previous is None else shelf.conversation(kept.previous)
    items = [*before, *kept.items]
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is asc or desc, not {order[:64]!r}", param="order")
    if order == "desc":
        items.reverse()
    if "after" in query:
        places = [place for place, item in enumerate(items) if item["id"] == query["after"]]
        if not places:
            raise RequestError(f"after: no item {query['after'][:64]!r}", param="after")
        items = items[places[0] + 1 :]
    limit = max(_number(query, "limit", 20, 100), 1)
    shown = items[:limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": shown, "has_more": len(items) > limit, **ends}


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    given = query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal()) or len(given) > 10 or int(given) > most:
        raise RequestError(f"{name} is a number up to {most}, not {given[:64]!r}", param=name)
    return int(given)
