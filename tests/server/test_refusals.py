"""What is refused: the field is named, the shape is OpenAI's, nothing runs."""

import gzip

import pytest
from scripted import ScriptedLLM
from starlette.testclient import TestClient

from octavo.server.app import create_app

CASES = [
    ({"temprature": 1}, "temprature", "unknown_field"),
    ({"n": "3"}, "n", "invalid_type"),
    ({"n": True}, "n", "invalid_type"),
    ({"n": 10**9}, "n", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": "a", "name": 5}]}, "messages[0].name", "invalid_type"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": 5}]}, "messages[0].tool_calls", "invalid_value"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": "x"}]}, "messages[0].tool_calls", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "a", "tool_call_id": {}}]}, "messages[0].tool_call_id", "invalid_type"),
    ({"n": -1}, "n", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_p": 1.1}, "top_p", "invalid_value"),
    ({"top_k": -5}, "top_k", "invalid_value"),
    ({"seed": 2**70}, "seed", None),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
    ({"max_tokens": 10**12}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 10**5}, "max_completion_tokens", "context_length_exceeded"),
    ({"min_tokens": 9, "max_completion_tokens": 3}, "min_tokens", "invalid_value"),
    ({"top_logprobs": 10**6, "logprobs": True}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"logprobs": 3}, "logprobs", "invalid_type"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "invalid_value"),
    ({"stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["x" * 257]}, "stop", "invalid_value"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"logit_bias": {"191222": -100}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"\uff11\uff12": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1_2": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {" 12": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options", "invalid_type"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": ...}, "messages", "missing_field"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing_field"),
    ({"messages": [{"role": "x", "content": "y"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": "y", "z": 1}]}, "messages[0].z", "unknown_field"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": "y"}] * 5000}, "messages", "invalid_value"),
    ({"model": ...}, "model", "missing_field"),
    ({"model": 3}, "model", "invalid_type"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported"),
    ({"response_format": {"type": "xml"}}, "response_format", "unsupported"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported"),
    ({"audio": {"voice": "x"}}, "audio", "unsupported"),
    ({"store": True}, "store", "unsupported"),
    ({"chat_template": "{{ 1 }}"}, "chat_template", "template_not_allowed"),
    ({"chat_template_kwargs": {"a": [1]}}, None, "invalid_type"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs", "invalid_value"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs", "invalid_value"),
    ({"chat_template_kwargs": {"add_generation_prompt": True}}, "chat_template_kwargs", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), CASES)
def test_chat_fields(ask, llm, fields, param, code):
    response = ask(**fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code
    assert error["message"] and "\n" not in error["message"]
    assert llm.opened == 0


@pytest.mark.parametrize("url", ["http://169.254.169.254/x.png", "file:///etc/passwd", "data:image/png;base64,AAAA"])
def test_images_are_refused_in_words(ask, url):
    part = {"type": "image_url", "image_url": {"url": url}}
    error = ask(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]).json()["error"]
    assert error["param"] == "messages[0].content[1]" and "images are not supported" in error["message"]


def test_spelling_hint(ask):
    assert "did you mean temperature?" in ask(temprature=1).json()["error"]["message"]


def test_model_names(ask, client):
    response = ask(model="gpt-4")
    error = response.json()["error"]
    assert response.status_code == 404 and error["code"] == "model_not_found" and "toy/model" in error["message"]
    assert ask(model="default").json()["model"] == "toy/model"
    assert client.get("/v1/models/toy/model").json()["id"] == "toy/model"
    assert client.get("/v1/models/none").status_code == 404
    (model,) = client.get("/v1/models").json()["data"]
    assert model["object"] == "model" and model["max_model_len"] == 256


def test_context_length_gives_both_numbers(ask, llm):
    response = ask(messages=[{"role": "user", "content": "x" * 300}])
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == "messages"
    assert error["message"].startswith("the prompt has 319 tokens, the context length is 256")


def test_what_never_fits_the_cache_is_refused(tokenizer, config):
    llm = ScriptedLLM(tokenizer, max_model_len=1000, num_blocks=4)
    client = TestClient(create_app(llm, config), base_url="http://127.0.0.1")
    body = {"model": "default", "prompt": "x" * 20, "max_tokens": 50}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["code"] == "exceeds_kv_capacity" and "64" in error["message"]
    error = client.post("/v1/completions", json=body | {"prompt": "x" * 200}).json()["error"]
    assert error["code"] == "exceeds_kv_capacity"
    del body["max_tokens"]
    assert client.post("/v1/completions", json=body).status_code == 200
    assert llm.calls[0]["params"].max_tokens == 64 - 20
    llm.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b'{"model": NaN}', b'{"n": 1e999}', b"\xff\xfe", b"[" * 100_000, b'{"a":"\\ud800"}'],
)
def test_bodies_that_are_no_json_object(client, content):
    response = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_json"


def test_media_types(client):
    body = b'{"model": "toy/model", "prompt": "x"}'
    for headers in (
        {"content-type": "text/plain", "origin": "http://evil"},
        {},
        {"content-type": "multipart/form-data"},
    ):
        response = client.post("/v1/completions", content=body, headers=headers)
        assert response.status_code == 415 and response.json()["error"]["code"] == "unsupported_media_type"
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert client.post("/v1/completions", content=gzip.compress(body), headers=packed).status_code == 415
    plain = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/completions", content=body, headers=plain).status_code == 200


def test_bodies_too_large(client, config):
    headers = {"content-type": "application/json"}

    def endless():
        for _ in range(20):
            yield b" " * (1 << 20)

    for content in (b" " * (config.max_body + 1), endless()):
        response = client.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
        assert response.headers["connection"] == "close"


def test_paths_and_methods(client):
    response = client.get("/v1/nothing")
    assert response.status_code == 404 and response.json()["error"]["code"] == "not_found"
    response = client.get("/v1/completions")
    assert response.status_code == 405 and response.json()["error"]["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert client.delete("/v1/models").status_code == 405


def test_headers_too_large(client):
    assert client.get("/version", headers={"x": "y" * 20_000}).status_code == 431
    assert client.get("/version", headers={f"x-{place}": "y" for place in range(101)}).status_code == 431
