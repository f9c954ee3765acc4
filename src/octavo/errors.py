"""Every exception that Octavo raises on purpose, with the exit code and HTTP status of each.

    OctavoError                     exit  http
    ├── UsageError                   2    400   flags, parameters, request fields
    │   ├── RequestError             2    400   one request is wrong; names the parameter
    │   │   ├── ContextLengthError   2    400   prompt longer than max_model_len
    │   │   └── CapacityError        2    400   could never fit the KV cache
    │   └── UnsupportedError         2    400   a known option that this build does not have
    ├── BadFileError                65    400   bytes on disk are not what they claim to be
    ├── MissingFileError            66    404   a file or model that is not there
    ├── ResourceError               69    503   not enough memory, cores or network
    ├── EngineError                 70    500   a fault of ours; the engine has stopped
    ├── PolicyError                 77    403   refused on purpose (unsafe format, path escape)
    └── ConfigError                 78    400   a configuration that cannot be served

A message is one line: what happened and what to do. `code` is a short stable word that tests and clients match on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class OctavoError(Exception):
    """Root of the tree. `code`: stable snake_case word; `param`: the field at fault, where there is one."""

    exit_code = 70
    http_status = 500
    default_code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param

    def line(self) -> str:
        """The one line that a command prints, whatever stands in the names that it quotes."""
        return " ".join(f"error: {self.code}: {self.message}".splitlines())


class UsageError(OctavoError):
    exit_code = 2
    http_status = 400
    default_code = "usage"


class RequestError(UsageError):
    default_code = "invalid_value"


class ContextLengthError(RequestError):
    default_code = "context_length_exceeded"


class CapacityError(RequestError):
    default_code = "exceeds_kv_capacity"


class UnsupportedError(UsageError):
    default_code = "unsupported"


class BadFileError(OctavoError):
    exit_code = 65
    http_status = 400
    default_code = "bad_file"


class MissingFileError(OctavoError):
    exit_code = 66
    http_status = 404
    default_code = "file_missing"


class ResourceError(OctavoError):
    exit_code = 69
    http_status = 503
    default_code = "no_resources"


class EngineError(OctavoError):
    exit_code = 70
    http_status = 500
    default_code = "internal_error"


class PolicyError(OctavoError):
    exit_code = 77
    http_status = 403
    default_code = "refused"


class ConfigError(OctavoError):
    exit_code = 78
    http_status = 400
    default_code = "bad_config"


@contextmanager
def in_file(path: object) -> Iterator[None]:
    """Names the file in what is raised by a reader that sees its contents alone."""
    try:
        yield
    except (BadFileError, ConfigError) as error:
        raise type(error)(f"{path}: {error.message}", code=error.code, param=error.param) from None
