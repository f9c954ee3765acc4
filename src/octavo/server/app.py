"""The HTTP server: routes over one engine, and `serve`, which loads the engine and runs until it is told to stop.

GET  /v1/models  /v1/models/{id}  /health  /health/live  /health/ready  /version
GET  /  /page.css  /page.js  /metrics  /v1/requests  /v1/requests/{id}
POST /v1/chat/completions  /v1/completions  /v1/embeddings
POST /v1/messages  /v1/messages/count_tokens
GET  /api/version  /api/tags  /api/ps
GET  /tokenizer_info
POST /tokenize  /detokenize  /rerank  /v1/rerank  /score  /v1/score
POST /api/chat  /api/generate  /api/embed  /api/embeddings  /api/show
POST /v1/decisions  /v1/responses
     /v1/responses/{id}  (GET, DELETE)  /v1/responses/{id}/cancel  (POST)  /v1/responses/{id}/input_items  (GET)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import octavo
from octavo.config import EngineConfig
from octavo.engine.executor import ProgressHook, no_progress
from octavo.engine.port import ModelInfo
from octavo.server import openapi
from octavo.server.admin import bound_admin, create_admin
from octavo.server.admission import Admission
from octavo.server.anthropic.endpoint import CountEndpoint, MessagesEndpoint
from octavo.server.config import ServerConfig
from octavo.server.endpoint import Service
from octavo.server.exchange import Exchange
from octavo.server.failures import HttpError
from octavo.server.fleet import FleetConfig
from octavo.server.guard import Guard
from octavo.server.insight import Insight
from octavo.server.logbook import LogFormat, logbook
from octavo.server.models import ALIAS, Models
from octavo.server.observer import Observer, Watch
from octavo.server.ollama import listing
from octavo.server.ollama.endpoints import OllamaChat, OllamaEmbed, OllamaEmbeddings, OllamaGenerate
from octavo.server.openai.chat import ChatEndpoint
from octavo.server.openai.completions import CompletionEndpoint
from octavo.server.openai.decisions.endpoint import DecisionEndpoint
from octavo.server.openai.embeddings import EmbeddingEndpoint
from octavo.server.openai.responses.endpoint import response_routes
from octavo.server.own.scores import RerankEndpoint, ScoreEndpoint
from octavo.server.own.tokens import DetokenizeEndpoint, TokenizeEndpoint, TokenizerInfo
from octavo.server.page import FILES, Page
from octavo.server.port import TextEngine
from octavo.server.seat import Seat
from octavo.server.serving import Work, bind, run, serve_operator
from octavo.server.spans import Spans, spans
from octavo.server.state import ServerState

Announce = Callable[[str], None]


def create_app(
    served: TextEngine | Models, config: ServerConfig, state: ServerState | None = None, traced: Spans | None = None
) -> Starlette:
    """The ASGI application over an engine that runs already, or over several models."""
    models = served if isinstance(served, Models) else Models.of(served)
    observer = Observer(keep_prompts=config.keep_prompts, spans=traced)
    service = Service(models, config, state or ServerState(), Admission(config), observer)
    reads, insight = Reads(service), Insight(service)

    def post(path: str, endpoint: ASGIApp) -> Route:
        return Route(path, endpoint, methods=["POST"])

    routes = [
        post("/v1/chat/completions", ChatEndpoint(service)),
        post("/v1/completions", CompletionEndpoint(service)),
        post("/v1/embeddings", EmbeddingEndpoint(service)),
        post("/v1/messages", MessagesEndpoint(service)),
        post("/v1/messages/count_tokens", CountEndpoint(service)),
        post("/tokenize", TokenizeEndpoint(service)),
        post("/detokenize", DetokenizeEndpoint(service)),
        Route("/tokenizer_info", TokenizerInfo(service), methods=["GET"]),
        *(post(path, RerankEndpoint(service)) for path in ("/rerank", "/v1/rerank")),
        *(post(path, ScoreEndpoint(service)) for path in ("/score", "/v1/score")),
        post("/api/chat", OllamaChat(service)),
        post("/api/generate", OllamaGenerate(service)),
        post("/api/embed", OllamaEmbed(service)),
        post("/api/embeddings", OllamaEmbeddings(service)),
        post("/api/show", listing.OllamaShow(service)),
        *(Route(path, listing.OllamaReads(service), methods=["GET"]) for path in listing.PATHS),
        *response_routes(service),
        post("/v1/decisions", DecisionEndpoint(service)),
        *(Route(path, reads, methods=["GET"]) for path in ("/v1/models", "/v1/models/{model:path}")),
        *(Route(path, Page(config), methods=["GET"]) for path in FILES),
        *(Route(path, insight, methods=["GET"]) for path in ("/metrics", "/v1/requests", "/v1/requests/{request}")),
        *(Route(path, reads, methods=["GET"]) for path in ("/health", "/health/live", "/health/ready", "/version")),
    ]
    routes.append(Route(openapi.PATH, openapi.OpenAPI(routes, config), methods=["GET"]))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        message = f"{request.method} {request.scope['path'][:256]}: {error.detail}"
        return _Failure(HttpError(error.status_code, code, message), config, error.headers)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Watch, observer=observer), Middleware(Guard, config=config)],
        exception_handlers={HTTPException: refused},
    )


class Reads:
    """The GET routes, which look at the engine and change nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.config)
        path: str = scope["path"]
        if path.startswith("/v1/models"):
            await self._models(exchange, scope["path_params"].get("model"))
        elif path == "/version":
            await exchange.answer({"version": octavo.__version__})
        elif path == "/health/live":
            await exchange.answer({"status": "live"})
        else:
            await self._health(exchange)

    async def _models(self, exchange: Exchange, wanted: str | None) -> None:
        models = self._service.models
        if wanted is None:
            shown = [self._described(name, seat) for name, seat in models.listed()]
            ends = {"has_more": False, "first_id": shown[0]["id"], "last_id": shown[-1]["id"]}
            await exchange.answer({"object": "list", "data": shown, **ends})
            return
        try:
            await exchange.answer(self._described(wanted, models.find(wanted)))
        except HttpError as error:
            await exchange.fail(error)

    def _described(self, name: str, seat: Seat) -> dict[str, Any]:
        """As OpenAI's clients and Anthropic's list it. max_model_len: the context that fits here, null for a model that
        nobody has measured yet."""
        name_shown = seat.name if name == ALIAS else name
        return {
            "id": name_shown,
            "object": "model",
            "type": "model",
            "display_name": name_shown,
            "created": self._created,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created)),
            "owned_by": "octavo",
            "max_model_len": seat.context or None,
            "state": seat.state,
            **({} if name in (seat.name, ALIAS) else {"alias_of": seat.name}),
        }

    async def _health(self, exchange: Exchange) -> None:
        """200 while new work is taken, 503 with the reason otherwise. Counts are sums over the models."""
        models = self._service.models
        fault = self._service.state.fault(models) or self._service.state.stall(models)
        status = "ready" if fault is None else "unavailable" if models.opening is None else "loading"
        body: dict[str, Any] = {"status": status, "model": models.seats[0].name}
        if fault is None:
            stats = [llm.stats() for _, llm in models.engines()]
            body["running"] = sum(each.running for each in stats)
            body["waiting"] = sum(each.waiting for each in stats)
            body["models"] = {seat.name: seat.state for seat in models.seats}
        else:
            body["reason"] = fault
            body |= {} if models.opening is None else {"progress": models.opening}
        await exchange.answer(body, 200 if fault is None else 503, {} if fault is None else {"retry-after": "1"})


class _Failure(Response):
    """An error in the usual shape, where Starlette wants a Response."""

    def __init__(self, error: HttpError, config: ServerConfig, headers: Mapping[str, str] | None) -> None:
        super().__init__(status_code=error.http_status)
        self._error = error
        self._more = headers
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Exchange(scope, receive, send, self._config).fail(self._error, self._more)


def _say(line: str) -> None:
    print(line, flush=True)


def serve(
    engines: Sequence[EngineConfig],
    *,
    fleet: FleetConfig,
    log_format: LogFormat = "text",
    otel: bool = False,
    allowed_host: Sequence[str] = (),
    max_queued_requests: int | None = None,
    progress: ProgressHook = no_progress,
    loaded: Callable[[ModelInfo], None] | None = None,
    announce: Announce = _say,
    **options: Any,
) -> int:
    """`octavo serve`: listens, loads the first model into a child process, serves until a signal; the exit code.

    While it loads, health and listings are answered and all work is refused with 503. What can be refused is refused
    before the load: the address without a key, the port that is taken, a model that has
    no room. max_queued_requests: by default four times what all models run at once, and 64 at least. options: those of
    ServerConfig.of. Raises ConfigError, ResourceError, and what stopped the engine.
    """
    at_most = max(64, 4 * sum(engine.max_num_seqs for engine in engines))
    queued = at_most if max_queued_requests is None else max_queued_requests
    config = ServerConfig.of(allowed_hosts=allowed_host, max_queued_requests=queued, environ=os.environ, **options)
    with ExitStack() as life:
        life.enter_context(logbook(log_format))
        listener, traced = life.enter_context(bind(config)), life.enter_context(spans(otel))
        models, state = fleet.models(engines), ServerState()
        beside: list[Work] = [partial(state.pulse.watch, models.engines)]
        if config.admin_socket is not None:
            operator = life.enter_context(bound_admin(config.admin_socket))
            beside.append(partial(serve_operator, create_admin(models, state), config, operator))

        async def opened() -> None:
            llm = await models.open_first(progress)
            if loaded is not None:
                loaded(llm.info)

        app = create_app(models, config, state, traced)
        return run(app, models, config, state, listener, announce, opened, beside)
