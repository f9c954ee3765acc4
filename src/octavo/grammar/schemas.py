"""JSON schemas said in other words, so that more of them can be enforced: every rewriting keeps what is valid.

    format password, byte or binary        nothing: a remark
    uniqueItems false                      nothing
    dependentRequired, dependencies        either the property is absent, or what it asks for holds
    not: {required: [a, b]}                an object in which one of them is absent

A keyword that is left is the library's to enforce or to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REMARKS = ("password", "byte", "binary")  # OpenAPI's: how a text is shown or carried, not what it is
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains"),
    *("propertyNames", "not", "if", "then", "else"),
)


def reworded(schema: Any) -> Any:
    """A copy; what is no schema stays as it is. Raises RecursionError."""
    if not isinstance(schema, Mapping):
        return schema
    said: dict[str, Any] = dict(schema)
    for key in _NAMED:
        if isinstance(said.get(key), Mapping):
            said[key] = {name: reworded(inner) for name, inner in said[key].items()}
    for key in _LISTED:
        if isinstance(said.get(key), list):
            said[key] = [reworded(inner) for inner in said[key]]
    for key in _SINGLE:
        if isinstance(said.get(key), Mapping):
            said[key] = reworded(said[key])
    if said.get("format") in REMARKS:
        del said["format"]
    if said.get("uniqueItems") is False:
        del said["uniqueItems"]
    more = [*_dependent(said), *_lacking(said)]
    if more:
        given = said.get("allOf")
        said["allOf"] = [*(given if isinstance(given, list) else []), *more]
    return said


def _dependent(said: dict[str, Any]) -> list[dict[str, Any]]:
    """What the dependencies ask for. They are taken out."""
    asked: list[dict[str, Any]] = []
    for key in ("dependentRequired", "dependencies"):
        found = said.get(key)
        if not isinstance(found, Mapping) or not all(isinstance(one, (list, Mapping)) for one in found.values()):
            continue
        for name, needed in found.items():
            present: dict[str, Any] = {"required": [name]}
            if isinstance(needed, list):
                present = {"required": [name, *needed]}
            else:
                present = {"allOf": [present, reworded(needed)]}
            asked.append({"anyOf": [{"properties": {name: False}}, present]})
        del said[key]
    return asked


def _lacking(said: dict[str, Any]) -> list[dict[str, Any]]:
    """A `not` of required properties alone, which is taken out."""
    denied = said.get("not")
    if not isinstance(denied, Mapping) or set(denied) != {"required"} or not isinstance(denied["required"], list):
        return []
    del said["not"]
    absent: list[Any] = [{"properties": {name: False}} for name in denied["required"]]
    return [{"type": "object", "anyOf": absent} if absent else {"enum": []}]
