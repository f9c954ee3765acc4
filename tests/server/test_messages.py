"""The Messages protocol: what the model sees, whole answers and event orders, refusals in its own shape."""

import json
from pathlib import Path

import anthropic
import msgspec
import pytest
from scripted import ANSWER, ScriptedLLM
from starlette.testclient import TestClient

from octavo.server.anthropic.shapes import ACCEPTED, MessagesRequest
from octavo.server.app import create_app
from octavo.server.config import ServerConfig

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ďáblice"}}\n</tool_call>'
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def llm(hermes):
    return ScriptedLLM(*hermes, max_model_len=1024)


@pytest.fixture
def send(client):
    """send(fields...) -> response; None removes a field."""

    def post(path="/v1/messages", **fields):
        body = {"model": "toy/model", "max_tokens": 200, "messages": HI} | fields
        body = {name: value for name, value in body.items() if value is not ...}
        return client.post(path, json=body, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x,y"})

    return post


@pytest.fixture
def official(live):
    with anthropic.Anthropic(base_url=live.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        yield client


def events(response):
    """(name, payload) of a streamed answer; names and types agree."""
    found = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == payload["type"] for name, payload in found)
    return found


def prompt(llm):
    return llm.tokenizer.decode(llm.calls[-1]["prompt"], skip_special=False)


def test_a_message(send, llm):
    message = send().json()
    assert message["id"].startswith("msg_") and message["type"] == "message" and message["role"] == "assistant"
    assert message["content"] == [{"type": "text", "text": ANSWER}]
    assert message["stop_reason"] == "end_turn" and message["stop_sequence"] is None
    assert message["model"] == "toy/model"
    tokens = len(llm.tokenizer.encode(ANSWER)) + 1
    assert message["usage"] == {
        "input_tokens": len(llm.calls[0]["prompt"]) - 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": tokens,
    }


def test_the_order_of_events(send, llm):
    llm.answer = "<think>Hm.</think>Well:" + CALL + CALL
    got = events(send(stream=True, tools=[WEATHER]))
    names = [name for name, _ in got]
    assert names[:2] == ["message_start", "ping"] and names[-2:] == ["message_delta", "message_stop"]
    assert got[0][1]["message"]["content"] == [] and got[0][1]["message"]["usage"]["cache_read_input_tokens"] == 1
    middle = got[2:-2]
    blocks = [payload["content_block"]["type"] for name, payload in middle if name == "content_block_start"]
    assert blocks == ["thinking", "text", "tool_use", "tool_use"]
    open_ = None
    for name, payload in middle:  # each block opens, grows and closes before the next
        if name == "content_block_start":
            assert open_ is None and payload["index"] == len([1 for _ in range(payload["index"])])
            open_ = payload["index"]
        assert payload["index"] == open_
        open_ = None if name == "content_block_stop" else open_
    deltas = [payload["delta"]["type"] for name, payload in middle if name == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert got[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert got[-2][1]["usage"]["output_tokens"] > 0


def test_streams_and_whole_messages_agree(official, llm):
    llm.answer = "<think>Hm. Hm.</think>Well: ďábel" + CALL
    asked = {"model": "toy/model", "max_tokens": 200, "messages": HI, "tools": [WEATHER]}
    whole = official.messages.create(**asked)
    with official.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == "Well: ďábel"
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert whole.content[0].thinking == "Hm. Hm." and len(whole.content[0].signature) == 64
    assert whole.content[2].input == {"city": "Ďáblice"} and whole.stop_reason == "tool_use"
    for block in (whole.content[2], streamed.content[2]):
        block.id = ""  # each is minted anew
    for mine, theirs in zip(streamed.content, whole.content, strict=True):
        assert theirs.to_dict().items() <= mine.to_dict().items()
    assert streamed.usage == whole.usage and streamed.stop_reason == whole.stop_reason


def test_a_loop_over_a_tool(official, llm):
    llm.answer = "<think>a</think>" + CALL
    asked = {"model": "toy/model", "max_tokens": 99, "tools": [WEATHER]}
    first = official.messages.create(messages=HI, **asked)
    call = first.content[-1]
    llm.answer = "Rain."
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "wet"}]}
    turn = {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}
    second = official.messages.create(messages=[*HI, first.to_param(), turn], **asked)
    assert second.content[0].text == "Rain." and second.stop_reason == "end_turn"
    assert prompt(llm).endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\nwet<|im_end|>\n"
        "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_templates_are_given(send, llm, monkeypatch):
    seen = []
    monkeypatch.setattr(llm, "encode_chat", lambda messages, **options: seen.append((messages, options)) or [5])
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "i", "name": "weather", "input": {"q": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "r", "is_error": True}]},
    ]
    assert send(messages=messages, tools=[WEATHER], thinking={"type": "adaptive"}).status_code == 200
    ((given, options),) = seen
    assert given == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "t",
            "tool_calls": [
                {"id": "i", "type": "function", "function": {"name": "weather", "arguments": '{"q":1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "i", "content": "r"},
    ]
    assert options["thinking"] is True and options["enable_thinking"] is True
    function = {"name": "weather", "description": "of a city", "parameters": WEATHER["input_schema"]}
    assert options["tools"] == [{"type": "function", "function": function}]


def test_the_line_that_changes_is_dropped(send, llm):
    def system(mark):
        bill = f"x-anthropic-billing-header: cc_version=2; cch={mark};"
        return [{"type": "text", "text": bill}, {"type": "text", "text": "Be kind."}]

    send(system=system("aa"))
    send(system=system("bb"))
    send(system="x-anthropic-billing-header: cch=cc;\nBe kind.")
    send(system="Be kind.")
    assert len({call["prompt"] for call in llm.calls}) == 1
    assert prompt(llm).startswith("<|im_start|>system\nBe kind.<|im_end|>\n")


def test_a_late_system_message_is_in_the_turn_of_the_user(send, llm):
    system = {"role": "system", "content": "Now in French."}
    send(system="Be kind.", messages=[{"role": "system", "content": "Always."}, *HI, system])
    assert prompt(llm) == (
        "<|im_start|>system\nBe kind.\nAlways.<|im_end|>\n<|im_start|>user\nHi\nNow in French.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_counts_are_of_the_whole_prompt(send, llm):
    asked = {"system": "Be kind.", "tools": [WEATHER], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    count = send("/v1/messages/count_tokens", max_tokens=..., **asked).json()
    assert send(**asked).status_code == 200
    assert count == {"input_tokens": len(llm.calls[0]["prompt"])}
    assert llm.opened == 1
    long = [{"role": "user", "content": "x" * 5000}]  # more than the context
    assert send("/v1/messages/count_tokens", max_tokens=..., messages=long).json()["input_tokens"] > 5000


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"max_tokens": 100_000}, "end_turn", None),
        ({"stop_sequences": ["brown", "fox"]}, "stop_sequence", "brown"),
    ],
)
def test_stop_reasons(send, fields, reason, sequence):
    message = send(**fields).json()
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_a_context_that_ends_is_said(send, llm):
    llm.answer = "x" * 980
    assert (
        send(max_tokens=32_000, messages=[{"role": "user", "content": "y" * 99}]).json()["stop_reason"]
        == "model_context_window_exceeded"
    )


def test_sampling_arrives(send, llm):
    send(temperature=0.5, top_k=7, top_p=0.9, stop_sequences=["q"], metadata={"user_id": "u"})
    params = llm.calls[0]["params"]
    assert (params.temperature, params.top_k, params.top_p, params.stop) == (0.5, 7, 0.9, ("q",))


@pytest.mark.parametrize("plain", [False, True])
def test_a_budget_of_thoughts(send, llm, tokenizer, template, monkeypatch, plain):
    if plain:  # a template without reasoning keeps every budget
        llm.tokenizer, llm._template = tokenizer, template
        monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}")
    assert send(thinking={"type": "enabled", "budget_tokens": 1024}).status_code == 200
    assert llm.calls[0]["params"].thinking_budget == (None if plain else 1024)


def test_thoughts_can_stay_hidden(send, llm):
    llm.answer = "<think>secret</think>Well."
    asked = {"tools": [WEATHER], "thinking": {"type": "adaptive", "display": "omitted"}}
    for text in (send(**asked).text, send(stream=True, **asked).text):
        assert "secret" not in text and "signature" in text and "thinking_delta" not in text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": ...}, "max_tokens is required"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "assistant", "content": "Well"}]}, "is not continued"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "images are not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": ""}]}]}, "no thinking block"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"container": "c"}, "container is not supported"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "prompt is too long: the prompt has 20"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(send, llm, fields, says, stream):
    response = send(stream=stream, **fields)
    body = response.json()
    assert response.status_code == 400 and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error" and says in body["error"]["message"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert llm.opened == 0


def test_the_door_speaks_the_same(llm, client, config):
    locked = TestClient(
        create_app(llm, ServerConfig.of(environ={"OCTAVO_API_KEY": "alpha"})), base_url="http://127.0.0.1"
    )
    kinds = {
        401: ("authentication_error", locked.post("/v1/messages")),
        404: ("not_found_error", client.post("/v1/messages/batches")),
        405: ("invalid_request_error", client.get("/v1/messages")),
        413: ("request_too_large", client.post("/v1/messages", content=b" " * (config.max_body + 1), headers=JSON)),
    }
    for status, (kind, response) in kinds.items():
        body = response.json()
        assert response.status_code == status and body["type"] == "error" and body["error"]["type"] == kind
        assert body["request_id"] == response.headers["x-request-id"]
    assert locked.post("/v1/messages", headers={"x-api-key": "alpha"}).status_code == 415


JSON = {"content-type": "application/json"}


def test_the_official_client_knows_our_errors(official, llm):
    with pytest.raises(anthropic.NotFoundError, match="toy/model"):
        official.messages.create(model="claude-x", max_tokens=9, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        official.messages.create(model="default", max_tokens=9, messages=[{"role": "user", "content": "x" * 2000}])
    assert official.messages.count_tokens(model="default", messages=HI).input_tokens > 2


def test_the_official_client_lists_models(official):
    (model,) = official.models.list().data
    assert (model.id, model.type, model.display_name) == ("toy/model", "model", "toy/model")
    assert model.created_at.year > 2020
    assert official.models.retrieve("toy/model").id == "toy/model"


def test_a_fault_inside_a_stream_is_its_last_event(send, official, llm):
    llm.failure = "out of luck"
    name, payload = events(send(stream=True))[-1]
    assert name == "error" and payload["error"]["type"] == "api_error" and "out of luck" in payload["error"]["message"]
    with pytest.raises(anthropic.APIStatusError, match="out of luck"):
        list(official.messages.create(model="default", max_tokens=50, messages=HI, stream=True))


def test_silence_is_bridged(llm, send, config, monkeypatch):
    llm.pause = 0.03
    monkeypatch.setattr("octavo.server.config.ServerConfig.ping_seconds", 0.005)
    assert [name for name, _ in events(send(stream=True, max_tokens=3))].count("ping") >= 2


def test_every_field_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.split("## Anthropic's Messages\n")[1].split("\n## ")[0]
    fields = [field.encode_name for field in msgspec.structs.fields(MessagesRequest)]
    for name in [*fields, *(name for name in ACCEPTED if name != "container")]:
        assert f"`{name}`" in section, name


def test_an_empty_turn(send, llm):
    """Of the user: nothing would be asked. An answer may have been empty, and comes back with the history."""
    for role in ("user", "system"):
        refused = send(messages=[*HI, {"role": "assistant", "content": "a"}, {"role": role, "content": []}])
        assert refused.status_code == 400 and "messages[2].content is empty" in refused.json()["error"]["message"]
    assert send(messages=[*HI, {"role": "assistant", "content": []}, *HI]).status_code == 200
    said = llm.tokenizer.decode(llm.calls[-1]["prompt"], skip_special=False)
    assert said.count("<|im_start|>") == 4 and "None" not in said and "[]" not in said
