"""Schemas in other words: what was valid is valid, what was not is not."""

import json

import pytest
from tiny_model import write_tokenizer

from octavo.grammar.schemas import reworded
from octavo.grammar.structures import Structures
from octavo.request import Structure
from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    write_tokenizer(folder)
    return Tokenizer.from_files(folder / "tokenizer.json", {"eos_token": "</s>"})


@pytest.fixture(scope="module")
def structures(tokenizer):
    return Structures(lambda: tokenizer)


def accepts(structures, tokenizer, schema, value):
    matcher = structures.matcher(Structure("json_schema", json.dumps(schema)))
    for token in [*tokenizer.encode(json.dumps(value)), tokenizer.eos_ids[0]]:
        if not matcher.mask()[token >> 5] >> (token & 31) & 1:
            return False
        matcher.accept([token])
    return True


LETTERS = {name: {"type": "integer"} for name in "abc"}


def of_letters(**more):
    return {"type": "object", "properties": LETTERS, "additionalProperties": False} | more


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "format": "password"}, ["x", ""], [1]),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, [[1, 1], []], [["x"]]),
        (of_letters(dependentRequired={"a": ["b"]}), [{}, {"a": 1, "b": 2}, {"b": 1}, {"c": 1}], [{"a": 1}, {"d": 1}]),
        (
            of_letters(dependencies={"a": ["b", "c"], "b": ["c"]}),
            [{}, {"a": 1, "b": 2, "c": 3}, {"b": 1, "c": 1}],
            [{"a": 1}, {"a": 1, "b": 2}, {"b": 1}],
        ),
        (
            of_letters(dependencies={"a": {"properties": {"b": {"maximum": 3}}}}),
            [{}, {"a": 1}, {"a": 1, "b": 3}, {"b": 9}],
            [{"a": 1, "b": 9}],
        ),
        (of_letters(**{"not": {"required": ["a"]}}), [{}, {"b": 1}], [{"a": 1}, {"a": 1, "b": 1}]),
        (of_letters(**{"not": {"required": ["a", "b"]}}), [{}, {"a": 1}, {"b": 1, "c": 1}], [{"a": 1, "b": 1}]),
        ({"not": {"required": ["a"]}}, [{"b": 1}], [{"a": 1}, 7, "x"]),
        ({"dependentRequired": {"a": ["b"]}}, [7, "x", {"a": 1, "b": 1}], [{"a": 1}]),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": of_letters(dependentRequired={"a": ["b"]})}},
            [{"a": 1, "b": 2}],
            [{"a": 1}],
        ),
    ],
)
def test_what_is_valid(structures, tokenizer, schema, good, bad):
    assert [accepts(structures, tokenizer, schema, value) for value in good] == [True] * len(good)
    assert [accepts(structures, tokenizer, schema, value) for value in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"format": "byte", "not": {"required": ["a"]}, "uniqueItems": False}]},
        {"properties": {"format": {"const": "byte"}, "not": {"type": "string"}}},
        {"not": {"required": ["a"], "type": "object"}},
        {"not": {"type": "string"}},
        {"format": "topic"},
        {"dependencies": {"a": 7}},
    ],
)
def test_what_is_left_alone(schema):
    assert reworded(schema) == schema
