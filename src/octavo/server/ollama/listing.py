"""GET /api/version, /api/tags, /api/ps and POST /api/show: what is served, as Ollama's clients list it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

import octavo
from octavo.engine.port import ModelInfo
from octavo.server.call import Call
from octavo.server.endpoint import Service
from octavo.server.exchange import Exchange
from octavo.server.ollama.answer import now
from octavo.server.ollama.endpoints import OllamaEndpoint
from octavo.server.ollama.shapes import SHOW_ACCEPTED, ShowBody
from octavo.server.openai.fields import read
from octavo.server.port import TextEngine
from octavo.server.seat import Seat
from octavo.text.dialects.known import reasons, takes_tools

NEVER = "0001-01-01T00:00:00Z"  # when a model goes is not foretold
PATHS = ("/api/version", "/api/tags", "/api/ps")


class OllamaReads:
    """The GET routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._began = now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.config)
        if scope["path"] == "/api/version":
            await exchange.answer({"version": octavo.__version__})
            return
        listed = self._service.models.listed()
        if scope["path"] == "/api/tags":
            shown = [_entry(name, seat) | {"modified_at": self._began} for name, seat in listed]
        else:
            shown = [
                _entry(name, seat) | {"expires_at": NEVER, "size_vram": 0, "context_length": seat.context}
                for name, seat in listed
                if seat.alive is not None
            ]
        await exchange.answer({"models": shown})


class OllamaShow(OllamaEndpoint):
    shape = ShowBody

    async def work(self, exchange: Exchange, body: Mapping[str, Any], call: Call) -> None:
        read(body, ShowBody, SHOW_ACCEPTED)
        llm = call.llm
        answer = {
            "modelfile": f"FROM {llm.info.name}",
            "parameters": "",
            "template": llm.tokenizer.chat_template or "",
            "details": _details(llm.info),
            "model_info": {"general.architecture": "octavo", "octavo.context_length": call.room},
            "capabilities": _capabilities(llm),
            "modified_at": now(),
        }
        await exchange.answer(answer)


def _entry(name: str, seat: Seat) -> dict[str, Any]:
    info = seat.info
    digest = hashlib.sha256(seat.name.encode()).hexdigest()  # of the name: files are not read
    size = seat.model.need if info is None else info.weights_bytes
    return {"name": name, "model": name, "size": size, "digest": digest, "details": _details(info)}


def _details(info: ModelInfo | None) -> dict[str, Any]:
    """quantization_level: the kinds of weights in memory, as the numerics id names them, once they were loaded."""
    return {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "" if info is None else info.numerics.split("/")[1],
    }


def _capabilities(llm: TextEngine) -> list[str]:
    if llm.info.task == "embed":
        return ["embedding"]
    template = llm.tokenizer.chat_template
    found = {"tools": takes_tools(template), "thinking": reasons(template)}
    return ["completion", *(name for name, has in found.items() if has)]
