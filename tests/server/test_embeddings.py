"""/v1/embeddings: shapes, both encodings, the official client, refusals."""

import base64
import dataclasses
import json
import struct

import openai
import pytest
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig


@pytest.fixture
def llm(llm):
    llm.info = dataclasses.replace(llm.info, task="embed", step_tokens=64)
    llm._reader._info = llm.info
    return llm


@pytest.fixture
def embed(client):
    def post(**fields):
        body = json.dumps({"model": "toy/model", "input": "Hi"} | fields)
        return client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})

    return post


def test_an_answer(embed, llm):
    body = embed(input=["Hi", "Hello"]).json()
    lengths = [len(call["prompt"]) for call in llm.calls]
    assert body["object"] == "list" and body["model"] == "toy/model"
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert [item["embedding"][3] for item in body["data"]] == lengths
    assert body["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}


def test_token_ids_and_base64(embed):
    (item,) = embed(input=[5, 6, 7], encoding_format="base64").json()["data"]
    assert struct.unpack("<4f", base64.b64decode(item["embedding"])) == pytest.approx((0.6, 0.0, 0.8, 3.0))


def test_dimensions_cut_and_keep_the_length(embed):
    (item,) = embed(dimensions=1).json()["data"]
    assert item["embedding"] == [1.0]


def test_the_official_client(live):
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as official:
        answer = official.embeddings.create(model="toy/model", input=["Hi", "Ho"], dimensions=3)
    assert [item.embedding for item in answer.data] == [pytest.approx([0.6, 0.0, 0.8])] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [10**6]}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"dimensions": "5"}, "dimensions"),
        ({"stream": True}, "stream"),
    ],
)
def test_refusals_name_the_field(embed, fields, param):
    response = embed(**fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_more_inputs_than_run_at_once(embed, llm):
    texts = [f"{number}" for number in range(100)]
    body = embed(input=texts).json()
    assert [entry["index"] for entry in body["data"]] == list(range(100))
    assert [call["prompt"] for call in llm.calls] == [tuple(llm.tokenizer.encode(text)) for text in texts]


def test_too_long_an_input_is_refused_with_the_numbers(embed):
    error = embed(input="Hi " * 100).json()["error"]
    assert "64" in error["message"]


def test_a_model_that_generates_does_not_embed(embed, llm):
    llm.info = dataclasses.replace(llm.info, task="generate", step_tokens=0)
    llm._reader._info = llm.info
    assert embed().status_code == 400


def test_a_request_is_listed(client, embed, llm):
    """One line for all its inputs; what was refused has none."""
    assert embed(input=["Hi"] * 40).status_code == 200
    assert embed(input=[["x"]]).status_code == embed(input=[10**6]).status_code == 400
    (shown,) = client.get("/v1/requests").json()["data"]
    assert (shown["state"], shown["route"], shown["finish_reason"]) == ("ended", "/v1/embeddings", None)
    assert shown["prompt_tokens"] == shown["computed_tokens"] == sum(len(call["prompt"]) for call in llm.calls) > 40
    whole = client.get(f"/v1/requests/{shown['id']}").json()
    assert whole["sampling"] is whole["structure"] is None and len(whole["choices"]) == 1


def test_no_bound_on_a_prompt_in_the_queue(llm):
    """Of an embedding nobody can tell when it was begun."""
    llm.pause = 0.1
    client = TestClient(create_app(llm, ServerConfig(queue_timeout=0.01)), base_url="http://127.0.0.1")
    assert client.post("/v1/embeddings", json={"model": "toy/model", "input": "Hi"}).status_code == 200
    late = TestClient(create_app(llm, ServerConfig(first_token_timeout=0.01)), base_url="http://127.0.0.1")
    assert late.post("/v1/embeddings", json={"model": "toy/model", "input": "Hi"}).status_code == 504
