"""Errors as HTTP answers, in the shapes that clients parse: OpenAI's, Anthropic's, Ollama's."""

from __future__ import annotations

from typing import Any

from octavo.errors import ContextLengthError, OctavoError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class HttpError(OctavoError):
    """A fault of the transport (method, path, headers, body) rather than of a value in the request."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        """retry_after: seconds after which asking again makes sense."""
        super().__init__(message, code=code, param=param)
        self.http_status = status
        self.retry_after = retry_after


def error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def openai_body(error: OctavoError, request_id: str) -> dict[str, Any]:
    fields = {"message": error.message, "type": error_type(error.http_status), "param": error.param, "code": error.code}
    return {"error": fields}


def anthropic_body(error: OctavoError, request_id: str) -> dict[str, Any]:
    status = error.http_status
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    # agents look for these words, and make their conversation shorter
    opening = "prompt is too long: " if error.code == ContextLengthError.default_code else ""
    shown = {"type": kind, "message": opening + error.message}
    return {"type": "error", "error": shown, "request_id": request_id}


def ollama_body(error: OctavoError, request_id: str) -> dict[str, Any]:
    return {"error": error.message}


def internal_error() -> OctavoError:
    """What a client sees of a fault of ours: no type, no text of the exception."""
    return OctavoError("internal error: see the server's log", code="internal_error")
