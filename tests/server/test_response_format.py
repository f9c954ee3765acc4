"""response_format and structured_outputs: what reaches the engine, and refusals before an answer begins."""

import json

import pytest

from octavo.form import TOO_LARGE
from octavo.request import Structure

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def named(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}}


@pytest.mark.parametrize(
    ("fields", "structure"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, Structure("json_schema", '{"type":"object"}')),
        (named(SCHEMA), Structure("json_schema", json.dumps(SCHEMA, separators=(",", ":")))),
        ({"structured_outputs": {"regex": "a+"}}, Structure("regex", "a+")),
        ({"structured_outputs": {"choice": ["é", "b"]}}, Structure("choice", '["é","b"]')),
        ({"structured_outputs": {"grammar": 'start: "x"'}}, Structure("grammar", 'start: "x"')),
        ({"structured_outputs": {"json": "{}", "regex": None}}, Structure("json_schema", "{}")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_reaches_the_engine(ask, llm, fields, structure, stream):
    assert ask.text(stream=stream, **fields).status_code == 200
    assert llm.calls[-1]["params"].structure == structure
    assert ask(stream=stream, **fields).status_code == 200
    found = llm.calls[-1]["params"].structure
    if structure is None:
        assert found is None
    else:  # the template knows reasoning, which may come first
        *_, last = json.loads(found.source)
        assert found.kind == "form" and last == ["given", structure.kind, structure.source]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": "json"}, "response_format", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "schema"),
        (named({"not": {}}), "response_format", "not"),
        (named({"type": "strin"}), "response_format", "strin"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex", "takes an expression"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": [1]}, "structured_outputs", "object"),
        (named(SCHEMA) | {"structured_outputs": {"regex": "a"}}, "structured_outputs", "together"),
        (named(SCHEMA) | {"ignore_eos": True}, "ignore_eos", "together"),
        (named({"enum": ["x" * 300_000]}), "response_format", "characters"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_come_before_the_answer(ask, fields, param, says, stream):
    response = ask(stream=stream, **fields)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param and says in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_structure_whose_size_shows_late(ask, llm, stream):
    """No fault of ours, and none of others."""
    llm.failure = TOO_LARGE + "a row has 16007 items"
    response = ask(stream=stream)
    assert "invalid_structure" in response.text and "16007 items" in response.text
    assert response.status_code == (200 if stream else 400)
