"""/tokenize, /detokenize, /rerank, /score: shapes, what they agree with, refusals."""

import dataclasses
import math
from pathlib import Path

import msgspec
import pytest
from scripted import ScriptedLLM

from octavo.server.own.scores import RerankRequest, ScoreRequest, cosine
from octavo.server.own.tokens import DetokenizeRequest, TokenizeRequest

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture
def llm(hermes):
    return ScriptedLLM(*hermes, max_model_len=1024)


@pytest.fixture
def embedder(llm):
    llm.info = dataclasses.replace(llm.info, task="embed", step_tokens=64)
    llm._reader._info = llm.info
    return llm


@pytest.fixture
def post(client):
    return lambda path, **body: client.post(path, json={"model": "toy/model"} | body)


@pytest.mark.parametrize("text", ["The quick brown fox", "", "ďábel \N{HOT PEPPER}", "<|im_start|>user"])
def test_texts_and_tokens(post, text):
    body = post("/tokenize", prompt=text, return_token_strs=True).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) and body["max_model_len"] == 1024
    assert post("/detokenize", tokens=body["tokens"]).json() == {"prompt": text}
    assert post("/tokenize", prompt=text).json()["token_strs"] is None


def test_tokens_are_those_that_run(post, client, llm):
    chat = {"messages": HI, "tools": [TOOL], "chat_template_kwargs": {"thinking": True}}
    client.post("/v1/chat/completions", json={"model": "toy/model", "max_tokens": 1} | chat)
    client.post("/v1/completions", json={"model": "toy/model", "max_tokens": 1, "prompt": "Hi <|im_end|>"})
    assert tuple(post("/tokenize", **chat).json()["tokens"]) == llm.calls[0]["prompt"]
    assert tuple(post("/tokenize", prompt="Hi <|im_end|>").json()["tokens"]) == llm.calls[1]["prompt"]
    assert llm.opened == 2


def test_a_model_is_not_needed(client):
    assert client.post("/tokenize", json={"prompt": "Hi"}).json()["count"] == 2


def test_what_evaluators_ask_first(client, llm):
    told = client.get("/tokenizer_info").json()
    assert told["eos_token"] == "<|im_end|>" and told["bos_token"] == "<|im_start|>"
    assert told["chat_template"] == llm.tokenizer.chat_template
    assert client.get("/tokenizer_info?model=toy/model").json() == told
    assert client.get("/tokenizer_info?model=none").status_code == 404


def test_nearest_first(post, embedder):
    documents = ["x" * 9, "xx", {"text": "xxxx"}, "xx"]  # the scripted vector tells the number of tokens
    body = post("/rerank", query="yy", documents=documents).json()
    assert [result["index"] for result in body["results"]] == [1, 3, 2, 0]
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores[0] == scores[1] == 1.0 and scores == sorted(scores, reverse=True)
    assert body["results"][2]["document"] == {"text": "xxxx"} and body["model"] == "toy/model"
    assert body["usage"]["total_tokens"] == sum(len(call["prompt"]) for call in embedder.calls)
    short = post("/v1/rerank", query="yy", documents=documents, top_n=2, return_documents=False).json()
    assert short["results"] == [{"index": 1, "relevance_score": 1.0}, {"index": 3, "relevance_score": 1.0}]


def test_more_documents_than_run_at_once(post, embedder):
    body = post("/rerank", query="y", documents=["x" * (1 + place % 60) for place in range(100)]).json()
    assert sorted(result["index"] for result in body["results"]) == list(range(100))
    assert [result["index"] for result in body["results"]][:2] == [0, 60]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores(post, embedder, path):
    one_to_many = post(path, text_1="xx", text_2=["xx", "xxxx"]).json()
    assert [item["index"] for item in one_to_many["data"]] == [0, 1] and one_to_many["object"] == "list"
    first, second = (item["score"] for item in one_to_many["data"])
    assert first == 1.0 and second == pytest.approx(cosine([0.6, 0, 0.8, 2], [0.6, 0, 0.8, 4]))
    pairs = post(path, queries=["x", "xx"], documents=["x", "xx"]).json()
    assert [item["score"] for item in pairs["data"]] == [1.0, 1.0]
    assert len(post(path, queries=["x", "xx"], documents="x").json()["data"]) == 2


def test_cosine():
    assert cosine([3.0, 0.0], [0.0, 5.0]) == 0.0 and cosine([1.0, 1.0], [-2.0, -2.0]) == -1.0
    assert cosine([1.0, 0.0], [1.0, 1.0]) == pytest.approx(math.sqrt(0.5)) and cosine([0.0], [1.0]) == 0.0


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "x"}]}, "messages[0].role"),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, "chat_template"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b", ""]}, "documents"),
        ("/rerank", {"query": "", "documents": ["b"]}, "query"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b" * 99]}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"] * 1025}, "documents"),
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": "a", "documents": "b"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
    ],
)
def test_refusals(post, embedder, path, fields, param):
    response = post(path, **fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_model_that_generates_has_no_scores(post, llm):
    for path, fields in (("/rerank", {"query": "a", "documents": ["b"]}), ("/score", {"text_1": "a", "text_2": "b"})):
        error = post(path, **fields).json()["error"]
        assert error["code"] == "unsupported" and "toy/model generates" in error["message"]
    assert llm.opened == 0


def test_every_field_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.split("## Tokens and scores\n")[1].split("\n## ")[0]
    for shape in (TokenizeRequest, DetokenizeRequest, RerankRequest, ScoreRequest):
        for field in msgspec.structs.fields(shape):
            assert f"`{field.encode_name}`" in section, field.encode_name
