"""Fields of a request body: which are known, which are accepted without effect, and what to say of the others.

A field that is set and not supported is an error, never ignored; IGNORED is the whole list of exceptions (docs/api.md).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from octavo.errors import RequestError, UnsupportedError

S = TypeVar("S", bound=msgspec.Struct)


def _any(value: Any) -> bool:
    return True


def one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


# Fields without effect here: name -> which values are accepted. Anything else they may hold is an error.
IGNORED: dict[str, Callable[[Any], bool]] = {
    "user": lambda value: isinstance(value, str),
    "safety_identifier": lambda value: isinstance(value, str),
    "metadata": lambda value: isinstance(value, Mapping),
    "store": one_of(False),
    "service_tier": one_of("auto", "default"),
    "prediction": _any,
    "prompt_cache_retention": _any,
    "prompt_cache_options": lambda value: isinstance(value, Mapping) and not value.keys() - {"mode", "ttl"},
    "verbosity": one_of("medium"),
    "modalities": one_of(["text"]),
}

# Known fields that this server does not have: name -> which values are accepted because they ask for nothing.
UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "functions": one_of([]),
    "function_call": one_of("none", "auto"),
    "audio": one_of(),
    "web_search_options": one_of(),
    "moderation": one_of(),
}

Accepted = Mapping[str, Callable[[Any], bool]]
ACCEPTED = IGNORED | UNSUPPORTED


def read(body: Mapping[str, Any], shape: type[S], accepted: Accepted = ACCEPTED) -> S:
    """The body as a struct; null is absent. accepted: the fields that the struct has not, as IGNORED has them.

    Raises RequestError, UnsupportedError that name the field.
    """
    known = {field.encode_name for field in msgspec.structs.fields(shape)}
    present = {name: value for name, value in body.items() if value is not None}
    for name in [name for name in present if name not in known]:
        _check_other(name, present.pop(name), known, accepted)
    try:
        return msgspec.convert(present, shape, strict=True)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None


def _check_other(name: str, value: Any, known: set[str], accepted: Accepted) -> None:
    if name == "chat_template":
        raise RequestError("chat_template cannot be sent with a request", code="template_not_allowed", param=name)
    accepts = accepted.get(name)
    if accepts is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise RequestError(f"unknown field {name!r}{hint}", code="unknown_field", param=name[:64])
    if not accepts(value):
        shown = msgspec.json.encode(value).decode()
        raise UnsupportedError(f"{name} is not supported (got {shown[:80]})", param=name)


def _wrong_type(message: str) -> RequestError:
    """msgspec says "Expected `int`, got `str` - at `$.n`"."""
    what, _, place = message.partition(" - at `$")
    param = place.strip("`").lstrip(".")
    if what.startswith("Object missing required field"):
        name = what.split("`")[1]
        param = f"{param}.{name}" if param else name
        return RequestError(f"{param} is required", code="missing_field", param=param)
    what = what[:1].lower() + what[1:]
    return RequestError(f"{param}: {what}" if param else what, code="invalid_type", param=param or None)
