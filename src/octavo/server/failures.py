"""Errors as HTTP answers: {"error": {"message", "type", "param", "code"}}, the shape that OpenAI clients parse."""

from __future__ import annotations

from typing import Any

from octavo.errors import OctavoError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
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


def error_body(error: OctavoError) -> dict[str, Any]:
    fields = {"message": error.message, "type": error_type(error.http_status), "param": error.param, "code": error.code}
    return {"error": fields}


def internal_error() -> OctavoError:
    """What a client sees of a fault of ours: no type, no text of the exception."""
    return OctavoError("internal error: see the server's log", code="internal_error")
