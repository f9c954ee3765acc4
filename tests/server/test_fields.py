"""The lists of fields in code and in docs/api.md are one."""

import re
from pathlib import Path

import msgspec
import pytest
from openai.types import completion_create_params as text
from openai.types import decision_create_params as decision
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as response

from octavo.server.openai.decisions.endpoint import DecisionRequest
from octavo.server.openai.embeddings import EmbeddingRequest
from octavo.server.openai.fields import IGNORED, UNSUPPORTED
from octavo.server.openai.responses import shapes as responses
from octavo.server.openai.responses.shapes import ResponseRequest
from octavo.server.openai.shapes import ChatRequest, CompletionRequest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def test_ignored_fields_are_the_documented_ones():
    rows = re.findall(r"^\| `(\w+)` \|", section("Accepted without effect"), re.M)
    assert rows == list(IGNORED)


def test_unsupported_fields_are_documented():
    for name in UNSUPPORTED:
        assert f"`{name}`" in section("Known and not supported")


@pytest.mark.parametrize("shape", [ChatRequest, CompletionRequest, ResponseRequest])
def test_every_field_is_documented_and_in_one_list(shape):
    for field in msgspec.structs.fields(shape):
        assert f"`{field.encode_name}" in section("Fields"), field.encode_name
        if shape is not ResponseRequest:
            assert field.encode_name not in IGNORED and field.encode_name not in UNSUPPORTED


def test_the_lists_of_responses_are_documented():
    for names, title in (
        (responses.IGNORED, "Accepted without effect"),
        (responses.UNSUPPORTED, "Known and not supported"),
    ):
        for name in names:
            assert f"`{name}`" in section(title), name


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        (chat.CompletionCreateParamsBase, ChatRequest),
        (text.CompletionCreateParamsBase, CompletionRequest),
        (embeddings.EmbeddingCreateParams, EmbeddingRequest),
        (response.ResponseCreateParamsBase, ResponseRequest),
        (decision.DecisionCreateParams, DecisionRequest),
    ],
)
def test_every_field_of_the_official_client_has_its_decision(declared, shape):
    lists = {*IGNORED, *UNSUPPORTED}
    if shape is ResponseRequest:
        lists |= {*responses.IGNORED, *responses.UNSUPPORTED}
    known = {field.encode_name for field in msgspec.structs.fields(shape)}
    assert set(declared.__annotations__) <= known | lists
