"""What the operator may do, on a unix socket whose mode is its key: 0600, so that its owner alone can connect.

GET  /requests                 what is open: id, path, tenant, seconds
GET  /engines                  counters and gauges of each loaded model
POST /requests/{id}/abort      ends a request: its client gets an error, its blocks are free
POST /drain                    as the first SIGTERM does
POST /models/{name}/unload     unless a request holds it
None of it is on the port that clients reach.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octavo.errors import EngineError, ResourceError
from octavo.server.failures import HttpError, openai_body
from octavo.server.models import Models
from octavo.server.state import ServerState


def create_admin(models: Models, state: ServerState) -> Starlette:
    async def requests(request: Request) -> Response:
        now = time.monotonic()
        shown = [
            {
                "id": name,
                "path": running.exchange.scope["path"],
                "tenant": running.exchange.tenant,
                "seconds": round(now - running.since, 3),
            }
            for name, running in state.open.items()
        ]
        return JSONResponse({"requests": shown})

    async def engines(request: Request) -> Response:
        return JSONResponse({"engines": {name: asdict(llm.stats()) for name, llm in models.engines()}})

    async def abort(request: Request) -> Response:
        running = state.open.get(request.path_params["id"])
        if running is None:
            return _refused(404, "not_found", "no such request is open")
        running.exchange.end(EngineError("the request was aborted by the operator", code="aborted"))
        return JSONResponse({"aborted": request.path_params["id"]})

    async def drain(request: Request) -> Response:
        state.draining = True
        return JSONResponse({"draining": True, "requests": len(state.open)})

    async def unload(request: Request) -> Response:
        name = request.path_params["name"]
        try:
            unloaded = await models.unload(name)
        except HttpError as error:
            return _refused(error.http_status, error.code, error.message)
        return JSONResponse({"unloaded": name}) if unloaded else _refused(409, "model_in_use", f"{name} is in use")

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return _refused(error.status_code, code, f"{request.method} {request.scope['path'][:256]}: {error.detail}")

    return Starlette(
        routes=[
            Route("/requests", requests),
            Route("/engines", engines),
            Route("/requests/{id}/abort", abort, methods=["POST"]),
            Route("/drain", drain, methods=["POST"]),
            Route("/models/{name:path}/unload", unload, methods=["POST"]),
        ],
        exception_handlers={HTTPException: unknown},
    )


@contextlib.contextmanager
def bound_admin(path: str) -> Iterator[socket.socket]:
    """A socket there, with mode 0600 from its first moment, gone at the end. One that nobody answers any more is
    replaced. Raises ResourceError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        if _left_over(path):
            os.unlink(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ResourceError(f"cannot listen on {path}: {reason}", code="cannot_bind") from None
    finally:
        os.umask(before)
    try:
        yield listener
    finally:
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(path)


def _left_over(path: str) -> bool:
    """A socket of a server that has ended. A file that is none is nobody's to delete."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def _refused(status: int, code: str, message: str) -> Response:
    return JSONResponse(openai_body(HttpError(status, code, message), ""), status)
