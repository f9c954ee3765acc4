"""What a body asks its output to be: `response_format` as OpenAI has it, `structured_outputs` as vLLM has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import RequestError, UnsupportedError
from octavo.request import MAX_STRUCTURE, Structure

_ANY_OBJECT = Structure("json_schema", '{"type":"object"}')
_FORMS = {  # and what each takes
    "json": "a JSON schema",
    "regex": "an expression, as text",
    "choice": "a list of texts",
    "grammar": "a grammar, as text",
    "json_object": "true",
}


def read_structure(response_format: Any, structured_outputs: Any) -> Structure | None:
    """Raises RequestError, UnsupportedError that name the field."""
    formatted, structured = _format(response_format), _structured(structured_outputs)
    if formatted is not None and structured is not None:
        raise RequestError("structured_outputs: not together with response_format", param="structured_outputs")
    found, where = formatted or structured, "response_format" if formatted else "structured_outputs"
    if found is not None and len(found.source) > MAX_STRUCTURE:
        raise RequestError(f"{where}: at most {MAX_STRUCTURE} characters, not {len(found.source)}", param=where)
    return found


def _format(given: Any) -> Structure | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise UnsupportedError(
            f"response_format.type: text, json_object or json_schema, not {kind!r}", param="response_format"
        )
    named = given.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        where = "response_format.json_schema.schema"
        raise RequestError(f"{where} is a JSON schema", code="missing_field", param=where)
    return _schema(schema)


def _structured(given: Any) -> Structure | None:
    if given is None or given == {}:
        return None
    if not isinstance(given, Mapping):
        raise RequestError("structured_outputs is an object", code="invalid_type", param="structured_outputs")
    for name in given:
        if name not in _FORMS:
            where = f"structured_outputs.{name}"
            raise UnsupportedError(f"{where} is not supported: one of {', '.join(_FORMS)}", param=where)
    asked = [(name, value) for name, value in given.items() if value is not None and value is not False]
    if len(asked) != 1:
        raise RequestError(f"structured_outputs: exactly one of {', '.join(_FORMS)}", param="structured_outputs")
    ((name, value),) = asked
    return _form(name, value)


def _form(name: str, value: Any) -> Structure:
    where = f"structured_outputs.{name}"
    if name == "json_object" and value is True:
        return _ANY_OBJECT
    if name == "json" and isinstance(value, Mapping):
        return _schema(value)
    if name == "json" and isinstance(value, str):
        return Structure("json_schema", value)
    if name == "choice" and isinstance(value, list):
        return Structure("choice", msgspec.json.encode(value).decode())
    if name == "regex" and isinstance(value, str):
        return Structure("regex", value)
    if name == "grammar" and isinstance(value, str):
        return Structure("grammar", value)
    raise RequestError(f"{where} takes {_FORMS[name]}", code="invalid_type", param=where)


def _schema(schema: Mapping[str, Any]) -> Structure:
    return Structure("json_schema", msgspec.json.encode(schema).decode())
