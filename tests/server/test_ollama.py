"""Ollama's protocol: lines of JSON, its options, tools and thoughts, lists of models, refusals in its own shape."""

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from scripted import ANSWER, ScriptedLLM
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.ollama.shapes import OPTIONS_ACCEPTED, ChatBody, GenerateBody, Options

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ďáblice"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
HI = [{"role": "user", "content": "Hi"}]
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}


@pytest.fixture
def llm(hermes):
    return ScriptedLLM(*hermes, max_model_len=1024)


@pytest.fixture
def embedder(llm):
    llm.info = dataclasses.replace(llm.info, task="embed", step_tokens=64)
    llm._reader._info = llm.info
    return llm


@pytest.fixture
def chat(client):
    return lambda **fields: client.post("/api/chat", json={"model": "toy/model", "messages": HI} | fields)


@pytest.fixture
def generate(client):
    return lambda **fields: client.post("/api/generate", json={"model": "toy/model", "prompt": "Hi"} | fields)


def lines(response):
    assert response.headers["content-type"] == "application/x-ndjson" and response.text.endswith("}\n")
    return [json.loads(line) for line in response.text.splitlines()]


def prompt(llm):
    return llm.tokenizer.decode(llm.calls[-1]["prompt"], skip_special=False)


def test_a_chat_streams_by_itself(chat, llm):
    *parts, last = lines(chat())
    assert "".join(part["message"]["content"] for part in parts) == ANSWER and len(parts) > 5
    assert all(part["model"] == "toy/model" and part["done"] is False and part["created_at"] for part in parts)
    assert last["done"] is True and last["done_reason"] == "stop" and last["message"]["content"] == ""
    assert last.keys() > COUNTS
    assert last["prompt_eval_count"] == len(llm.calls[0]["prompt"])
    assert last["eval_count"] == len(llm.tokenizer.encode(ANSWER)) + 1
    assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"] > 0


def test_a_whole_chat(chat):
    whole = chat(stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": ANSWER}
    assert whole["done"] is True and whole.keys() > COUNTS


def test_thoughts_and_calls(chat, llm):
    llm.answer = "<think>Hm.</think>Well:" + CALL + CALL
    whole = chat(stream=False, tools=[TOOL]).json()["message"]
    assert whole["thinking"] == "Hm." and whole["content"] == "Well:"
    assert [call["function"]["index"] for call in whole["tool_calls"]] == [0, 1]
    assert whole["tool_calls"][0]["function"]["arguments"] == {"city": "Ďáblice"}
    parts = [part["message"] for part in lines(chat(tools=[TOOL]))]
    assert "".join(part.get("thinking", "") for part in parts) == "Hm."
    calls = [call for part in parts for call in part.get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [0, 1]


def test_what_templates_are_given(chat, llm, monkeypatch):
    seen = []
    monkeypatch.setattr(llm, "encode_chat", lambda messages, **options: seen.append((messages, options)) or [5])
    call = {"function": {"name": "weather", "arguments": {"q": 1}}}
    messages = [
        {"role": "system", "content": "s"},
        *HI,
        {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [call, call]},
        {"role": "tool", "content": "wet", "tool_name": "weather"},
        {"role": "tool", "content": "dry", "tool_name": "weather"},
    ]
    assert chat(messages=messages, tools=[TOOL], think="high").status_code == 200
    ((given, options),) = seen
    first, second = given[2]["tool_calls"]
    assert first["function"] == {"name": "weather", "arguments": '{"q":1}'} and first["id"] != second["id"]
    assert given[2]["reasoning_content"] == "t"
    assert [turn["tool_call_id"] for turn in given[3:]] == [first["id"], second["id"]]
    assert options["enable_thinking"] is True and options["reasoning_effort"] == "high"
    assert options["tools"] == [TOOL]
    chat(think=False)
    assert seen[1][1]["enable_thinking"] is False
    chat()
    assert "enable_thinking" not in seen[2][1]


def test_a_prompt(generate, llm):
    *parts, last = lines(generate(system="Be kind."))
    assert "".join(part["response"] for part in parts) == ANSWER and last["response"] == "" and last["done"]
    assert prompt(llm).startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n")
    whole = generate(stream=False, raw=True).json()
    assert whole["response"] == ANSWER and prompt(llm) == "Hi" and whole["prompt_eval_count"] == 2


def test_options_arrive(chat, llm):
    options = {
        "num_predict": 9,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.6,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["q"],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "num_ctx": 4096,
        "num_thread": 8,
    }
    last = chat(options=options, stream=False, keep_alive="5m").json()
    params = llm.calls[0]["params"]
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.min_p) == (9, 0.5, 7, 0.6, 0.1)
    assert (params.seed, params.stop, params.repetition_penalty) == (3, ("q",), 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.2, 0.3)
    assert last["eval_count"] <= 9
    chat(stream=False)
    params = llm.calls[1]["params"]
    assert (params.temperature, params.top_k, params.top_p) == (0.8, 40, 0.9)


@pytest.mark.parametrize("wanted", [-1, -2, 100_000])
def test_an_output_without_end_ends_with_the_context(chat, llm, wanted):
    llm.answer = "x" * 990
    whole = chat(stream=False, options={"num_predict": wanted}, messages=[{"role": "user", "content": "y" * 99}]).json()
    assert whole["done_reason"] == "length" and whole["prompt_eval_count"] + whole["eval_count"] == 1024


def test_formats(chat, llm):
    llm.answer = '{"a":1}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for format_ in ("json", schema):
        assert chat(stream=False, format=format_).json()["message"]["content"] == '{"a":1}'
    *_, given = json.loads(llm.calls[0]["params"].structure.source)  # behind reasoning
    assert given[:2] == ["given", "json_schema"]
    assert "required" in llm.calls[1]["params"].structure.source
    chat(stream=False, format="")
    assert llm.calls[2]["params"].structure is None


def test_who_wants_no_thinking_gets_none(chat, llm):
    for think, budget in ((False, 0), (True, None), ("high", None), (None, None)):
        assert chat(stream=False, think=think).status_code == 200
        assert llm.calls[-1]["params"].thinking_budget == budget


def test_logprobs(chat):
    whole = chat(stream=False, logprobs=True, top_logprobs=2).json()
    assert len(whole["logprobs"]) == whole["eval_count"] and len(whole["logprobs"][0]["top_logprobs"]) == 2
    streamed = [entry for part in lines(chat(logprobs=True)) for entry in part.get("logprobs", ())]
    assert len(streamed) == whole["eval_count"]


def test_nothing_to_say_is_loading(chat, generate, llm):
    for response in (chat(messages=[]), generate(prompt="")):
        body = response.json()
        assert body["done"] is True and body["done_reason"] == "load" and body["model"] == "toy/model"
    assert llm.opened == 0


def test_lists(client, llm):
    (tag,) = client.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == "toy/model" and len(tag["digest"]) == 64 and tag["size"] == 1
    assert tag["details"]["quantization_level"] == "f32" and tag["modified_at"].endswith("Z")
    (running,) = client.get("/api/ps").json()["models"]
    assert running["context_length"] == 1024 and running["digest"] == tag["digest"]
    assert client.get("/api/version").json().keys() == {"version"}
    shown = client.post("/api/show", json={"name": "toy/model:latest", "verbose": True}).json()
    assert shown["template"] == llm.tokenizer.chat_template
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 1024


def test_embeddings(client, embedder):
    body = {"model": "toy/model", "input": ["Hi", "Hello"], "truncate": True, "options": {}, "keep_alive": 0}
    answer = client.post("/api/embed", json=body).json()
    lengths = [len(call["prompt"]) for call in embedder.calls]
    assert [vector[3] for vector in answer["embeddings"]] == lengths
    assert answer["prompt_eval_count"] == sum(lengths) and answer["total_duration"] > 0
    assert client.post("/api/embed", json=body | {"input": "Hi", "dimensions": 1}).json()["embeddings"] == [[1.0]]
    assert client.post("/api/embed", json=body | {"input": []}).json()["embeddings"] == []
    old = client.post("/api/embeddings", json={"model": "toy/model", "prompt": "Hi"}).json()
    assert old == {"embedding": answer["embeddings"][0]}
    assert client.post("/api/show", json={"model": "toy/model"}).json()["capabilities"] == ["embedding"]
    too_long = client.post("/api/embed", json=body | {"input": "x" * 99})
    assert too_long.status_code == 400 and "64" in too_long.json()["error"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"options": {"temprature": 1}}, "did you mean temperature?"),
        ({"options": {"temperature": -1}}, "temperature"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"mirostat": 2}}, "mirostat is not supported"),
        ({"options": {"repeat_last_n": 64}}, "repeat_last_n is not supported"),
        ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images are not supported"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"format": "xml"}, "format"),
        ({"nonsense": 1}, "nonsense"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "the context length is 1024"),
        ({"model": 3}, "model"),
    ],
)
def test_refusals(chat, llm, fields, says):
    response = chat(**fields)
    assert response.status_code == 400 and response.json().keys() == {"error"}
    assert says in response.json()["error"] and llm.opened == 0


def test_the_door_speaks_the_same(llm, client, chat):
    assert chat(model="gemma3:4b").status_code == 404 and "toy/model" in chat(model="gemma3:4b").json()["error"]
    assert isinstance(client.post("/api/pull", json={"model": "x"}).json()["error"], str)
    assert isinstance(client.get("/api/chat").json()["error"], str)
    key = ServerConfig.of(environ={"OCTAVO_API_KEY": "alpha"})
    locked = TestClient(create_app(llm, key), base_url="http://127.0.0.1")
    refused = locked.get("/api/tags")
    assert refused.status_code == 401 and "a valid API key" in refused.json()["error"]


def test_a_fault_inside_a_stream_is_its_last_line(chat, llm):
    llm.failure = "out of luck"
    assert "out of luck" in lines(chat())[-1]["error"]


def test_every_field_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.split("## Ollama's API\n")[1].split("\n## ")[0]
    fields = [
        field.encode_name for shape in (ChatBody, GenerateBody, Options) for field in msgspec.structs.fields(shape)
    ]
    for name in [*fields, *OPTIONS_ACCEPTED]:
        assert f"`{name}`" in section, name
