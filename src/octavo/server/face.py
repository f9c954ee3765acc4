"""How the protocol of a path spells errors and frames streams: OpenAI's two, Anthropic's or Ollama's.

Clients parse refusals too, so the door's own (a missing key, an unknown path) are spelled for the path that was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import OctavoError
from octavo.server.failures import anthropic_body, ollama_body, openai_body

Body = Callable[[OctavoError, str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Face:
    """body: an error (and the request's id) as this protocol's clients parse it. failure: that body inside a stream.

    media: of streams. ping: what is sent when nothing else was for a while, empty where that has no spelling.
    end: what closes a stream that has ended well.
    """

    body: Body
    failure: Callable[[dict[str, Any]], bytes]
    media: str = "text/event-stream; charset=utf-8"
    ping: bytes = b": ping\n\n"
    end: bytes = b""


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """An event that is named by its type."""
    return b"event: " + value["type"].encode() + b"\n" + event(value)


def line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


OPENAI = Face(openai_body, event, end=b"data: [DONE]\n\n")
ANTHROPIC = Face(anthropic_body, named_event, ping=named_event({"type": "ping"}))
OLLAMA = Face(ollama_body, line, media="application/x-ndjson", ping=b"")
RESPONSES = Face(openai_body, lambda body: b"event: error\n" + event(body))
_ELSEWHERE = {"/v1/responses": RESPONSES, "/v1/messages": ANTHROPIC, "/api": OLLAMA}


def face_of(path: str) -> Face:
    for root, face in _ELSEWHERE.items():
        if path == root or path.startswith(f"{root}/"):
            return face
    return OPENAI
