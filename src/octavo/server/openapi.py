"""GET /openapi.json: the interface as a document, made of the routes and of the structs that read their bodies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import octavo
from octavo.server.config import ServerConfig
from octavo.server.endpoint import Endpoint
from octavo.server.exchange import Exchange
from octavo.server.guard import OPEN_PATHS

PATH = "/openapi.json"
_HOLE = re.compile(r"\{(\w+)(?::\w+)?\}")
_ERROR = {"description": "a refusal or a fault, as the protocol of the path spells errors"}


class OpenAPI:
    """`routes` are read when the document is asked for: those that come later are in it."""

    def __init__(self, routes: Sequence[Route], config: ServerConfig) -> None:
        self._routes = routes
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Exchange(scope, receive, send, self._config).answer(document(self._routes))


def document(routes: Sequence[Route]) -> dict[str, Any]:
    bodies = {route.path: shape for route in routes if (shape := getattr(route.endpoint, "shape", None)) is not None}
    schemas, components = msgspec.json.schema_components(bodies.values(), ref_template="#/components/schemas/{name}")
    shapes = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(_HOLE.sub(r"{\1}", route.path), {})
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operations[method.lower()] = _operation(route, method, shapes.get(route.path))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": octavo.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"header": []}],
    }


def _operation(route: Route, method: str, shape: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {"responses": {"200": {"description": "the answer"}, "default": _ERROR}}
    if names := _HOLE.findall(route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if isinstance(route.endpoint, Endpoint) and method == "POST":
        schema = {"type": "object"} if shape is None else shape
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.path in OPEN_PATHS:
        operation["security"] = []
    return operation
