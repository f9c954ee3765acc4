"""/v1/responses: items in and out, the order of events, what is kept and for whom, and the official client."""

import copy
import json

import openai
import pydantic
import pytest
from scripted import ANSWER, ScriptedLLM
from starlette.testclient import TestClient

from octavo.server.app import create_app
from octavo.server.config import ServerConfig
from octavo.server.keys import Key
from octavo.server.openai.responses.store import Kept, Shelf
from octavo.text.chat import ChatTemplate

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ďáblice"}}\n</tool_call>'
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(scope="module")
def hermes(tokenizer):
    source = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{# <tool_call> <think> #}"
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.reasoning_content %}[{{ message.reasoning_content }}]{% endif %}{{ message.content }}"
        "{% for call in message.tool_calls %}({{ call.function.name }} {{ call.function.arguments | tojson }})"
        "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant: "
    )
    taught = copy.copy(tokenizer)
    taught.chat_template = source
    template = ChatTemplate.of(taught)
    yield taught, template
    template.close()


@pytest.fixture
def llm(hermes):
    return ScriptedLLM(*hermes, max_model_len=2048, num_blocks=256)


@pytest.fixture
def create(client):
    def post(path="/v1/responses", key=None, **fields):
        body = {"model": "toy/model", "input": "Hi"} | fields
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        return client.post(path, content=json.dumps(body), headers=headers)

    return post


def prompt_of(llm):
    return llm.tokenizer.decode(llm.calls[-1]["prompt"], skip_special=False)


def events_of(response):
    """(event line, payload), numbered without gaps."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        line, data = block.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert line == f"event: {payload['type']}" and payload["sequence_number"] == len(found)
        found.append(payload)
    return found


def kinds(events):
    """Types in order, runs of deltas as one."""
    shown = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not shown or shown[-1] != kind or not kind.endswith("delta"):
            shown.append(kind)
    return shown


ITEM = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
ITEM += ["output_item.done"]


def test_an_answer(create, llm):
    body = create(metadata={"a": "b"}).json()
    assert body["object"] == "response" and body["status"] == "completed" and body["id"].startswith("resp_")
    (item,) = body["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["status"] == "completed"
    assert item["content"] == [{"type": "output_text", "text": ANSWER, "annotations": []}]
    usage = body["usage"]
    assert usage["input_tokens"] == len(llm.calls[0]["prompt"]) and usage["input_tokens_details"]["cached_tokens"] == 1
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert body["metadata"] == {"a": "b"} and body["error"] is None and body["incomplete_details"] is None
    assert prompt_of(llm) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant: "


def test_events_of_text(create):
    events = events_of(create(stream=True))
    assert kinds(events) == ["created", "in_progress", *ITEM, "completed"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER and len(deltas) > 3
    last = events[-1]["response"]
    assert last["output"] == [events[-2]["item"]] and last["status"] == "completed"
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1
    assert next(event for event in events if event["type"].endswith("item.added"))["item"]["content"] == []


def test_events_of_reasoning_and_calls(create, llm):
    llm.answer = "<think>so it is</think>Well.\n" + CALL + CALL
    events = events_of(create(stream=True, tools=[WEATHER]))
    thought = [kind.replace("output_text", "reasoning_text") for kind in ITEM]
    called = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(events) == ["created", "in_progress", *thought, *ITEM, *called, *called, "completed"]
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    places = [event["output_index"] for event in events if event["type"].endswith("item.added")]
    assert places == [0, 1, 2, 3]
    reasoning, message, call, other = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "so it is"}] and reasoning["summary"] == []
    assert message["content"][0]["text"] == "Well."
    assert json.loads(call["arguments"]) == {"city": "Ďáblice"} and call["call_id"] != other["call_id"]
    details = response["usage"]["output_tokens_details"]
    assert 0 < details["reasoning_tokens"] < response["usage"]["output_tokens"]
    assert create(tools=[WEATHER]).json()["output"][0]["content"] == reasoning["content"]


def test_cut_off(create):
    body = create(max_output_tokens=2).json()
    assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete" and body["usage"]["output_tokens"] == 2
    assert events_of(create(max_output_tokens=2, stream=True))[-1]["type"] == "response.incomplete"


def test_probes_with_nothing_to_say(create, llm):
    for given in ("", []):
        assert create(input=given, max_output_tokens=1).status_code == 200
    assert prompt_of(llm) == "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant: "


def test_items_become_messages(create, llm):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "x",
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Wait.", "annotations": []}], "phase": "x"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "B"}', "id": None},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "system", "content": "In English."},
    ]
    assert create(input=items, instructions="You help.", tools=[WEATHER]).status_code == 200
    prompt = prompt_of(llm)
    declared, _, talk = prompt.partition("<|im_start|>")
    assert json.loads(declared) == [{"type": "function", "function": {k: WEATHER[k] for k in WEATHER if k != "type"}}]
    assert talk.split("<|im_end|>\n<|im_start|>") == [
        "system\nYou help.\n\nBe brief.\n\nIn English.",
        "user\nHi",
        'assistant\n[hm]Wait.(weather {"city": "B"})(weather {})',
        "tool\nrain",
        "tool\nsun",
        "assistant: ",
    ]


def test_a_conversation_goes_on(create, llm, client):
    llm.answer = "<think>so</think>" + CALL
    first = create(tools=[WEATHER], instructions="Only once.").json()
    call = first["output"][-1]
    llm.answer = ANSWER
    output = [{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]
    second = create(input=output, previous_response_id=first["id"], tools=[WEATHER]).json()
    assert second["previous_response_id"] == first["id"]
    third = create(input="And now?", previous_response_id=second["id"]).json()
    talk = [part.removesuffix("<|im_end|>\n") for part in prompt_of(llm).split("<|im_start|>")[1:]]
    assert talk == [
        "user\nHi",
        'assistant\n[so](weather {"city": "Ďáblice"})',
        "tool\nrain",
        f"assistant\n{ANSWER}",
        "user\nAnd now?",
        "assistant: ",
    ]
    listed = client.get(f"/v1/responses/{third['id']}/input_items?order=asc&limit=3").json()
    assert [item["type"] for item in listed["data"]] == ["message", "reasoning", "function_call"] and listed["has_more"]
    rest = client.get(f"/v1/responses/{third['id']}/input_items?order=asc&after={listed['last_id']}").json()
    assert [item["type"] for item in rest["data"]] == ["function_call_output", "message", "message"]
    assert not rest["has_more"]
    newest = client.get(f"/v1/responses/{third['id']}/input_items").json()["data"][0]
    assert newest["content"] == [{"type": "input_text", "text": "And now?"}]
    refers = [{"type": "item_reference", "id": call["id"]}, *output]
    assert create(input=refers).status_code == 200
    assert '(weather {"city": "Ďáblice"})' in prompt_of(llm)


def test_what_is_kept(create, client):
    kept, not_kept = create().json(), create(store=False).json()
    assert kept["store"] and not not_kept["store"]
    assert client.get(f"/v1/responses/{kept['id']}").json() == kept
    assert client.get(f"/v1/responses/{not_kept['id']}").status_code == 404
    assert create(previous_response_id=not_kept["id"]).json()["error"]["code"] == "previous_response_not_found"
    assert client.delete(f"/v1/responses/{kept['id']}").json()["deleted"] is True
    for method in (client.get, client.delete):
        answer = method(f"/v1/responses/{kept['id']}")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "response_not_found"


class TestTenants:
    @pytest.fixture
    def config(self):
        return ServerConfig(port=0, keys=(Key.of("a"), Key.of("b")))

    def test_responses_are_their_tenants_own(self, create, client):
        kept = create(key="a").json()
        for key, status in (("a", 200), ("b", 404), ("c", 401)):
            headers = {"authorization": f"Bearer {key}"}
            assert client.get(f"/v1/responses/{kept['id']}", headers=headers).status_code == status
        assert create(key="b", previous_response_id=kept["id"]).status_code == 400
        assert create(key="b", input=[{"type": "item_reference", "id": kept["output"][0]["id"]}]).status_code == 404


def test_the_shelf_is_bounded():
    def kept(name, previous=None, text=""):
        return Kept({"id": name, "output": []}, [{"id": f"of {name}", "text": text}], previous)

    shelf = Shelf(3, 10_000)
    for name, previous in (("a", None), ("b", "a"), ("c", None), ("d", "b")):
        assert shelf.put(kept(name, previous))
    assert len(shelf) == 3  # c, the oldest that nothing builds on
    assert [item["id"] for item in shelf.conversation("d")] == ["of a", "of b", "of d"]
    assert shelf.put(kept("e", text="x" * 9_940)) and len(shelf) == 1 and shelf.size <= 10_000
    assert not shelf.put(kept("f", text="x" * 10_000)) and len(shelf) == 1
    shelf.drop("e")
    assert shelf.size == 0


def test_unknown_kinds_of_tools_are_skipped_and_named(create, llm):
    tools = [{"type": "web_search"}, WEATHER, {"type": "custom", "name": "patch"}, {"type": "namespace", "tools": []}]
    body = create(tools=tools).json()
    assert body["skipped_tools"] == ["web_search", "custom", "namespace"]
    assert [tool["name"] for tool in body["tools"]] == ["weather"]
    assert prompt_of(llm).count('"function"') == 2
    assert "skipped_tools" not in create(tools=[WEATHER]).json()


def test_choices_of_tools(create, llm):
    """As chat requests have them: what is forced is bound, what is not allowed is not shown."""
    clock = {"type": "function", "name": "clock", "strict": True, "parameters": {"type": "object", "properties": {}}}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]}
    for choice, shown, bound in (
        (None, 2, None),
        ("none", 0, False),
        ("required", 2, True),
        ({"type": "function", "name": "clock"}, None, True),
        (allowed, 1, None),
    ):
        answer = create(tools=[WEATHER, clock], tool_choice=choice)
        assert answer.status_code == 200 and answer.json()["tool_choice"] == (choice or "auto"), answer.text
        if shown is not None:
            assert prompt_of(llm).count('"function":') == shown
        if bound is not None:
            assert (llm.calls[-1]["params"].structure is not None) == bound
    refused = create(tools=[WEATHER], tool_choice={"type": "function", "name": "other"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"


def test_formats(create, llm):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert create(text={"format": form}).json()["text"]["format"] == form
    *_, given = json.loads(llm.calls[-1]["params"].structure.source)  # behind reasoning
    assert given[:2] == ["given", "json_schema"] and json.loads(given[2]) == schema
    assert create(text={"format": {"type": "text"}}).status_code == 200 and llm.calls[-1]["params"].structure is None
    refused = create(text={"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}).json()["error"]
    assert refused["param"] == "text.format"


def test_log_probabilities(create, llm):
    llm.answer = "<think>so</think>Yes."
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}
    events = events_of(create(**asked))
    text = events[-1]["response"]["output"][-1]["content"][0]
    deltas = [entry for event in events if "delta" in event for entry in event.get("logprobs", ())]
    assert text["logprobs"] == deltas and text["text"] == "Yes."
    assert b"".join(bytes(entry["bytes"]) for entry in deltas).endswith(b"Yes.")
    assert all(len(entry["top_logprobs"]) == 2 for entry in deltas)
    assert events_of(create(stream=True))[-1]["response"]["output"][-1]["content"][0].get("logprobs") is None


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_background(create, client, llm, stream):
    llm.pause = 0.002
    started = create(background=True, stream=stream)
    name = events_of(started)[0]["response"]["id"] if stream else started.json()["id"]
    if not stream:
        assert started.json()["status"] in ("queued", "in_progress")
    for _ in range(1000):
        body = client.get(f"/v1/responses/{name}").json()
        if body["status"] == "completed":
            break
    assert body["output"][0]["content"][0]["text"] == ANSWER and llm.opened == llm.closed == 1
    replayed = client.get(f"/v1/responses/{name}?stream=true&starting_after=3")
    if stream:
        events = events_of(started)
        assert kinds(events) == ["created", "queued", "in_progress", *ITEM, "completed"]
        blocks = started.text.split("\n\n")
        assert replayed.text.split("\n\n") == blocks[4:]
    else:
        assert replayed.json()["error"]["param"] == "stream"
    assert client.post(f"/v1/responses/{name}/cancel").json() == body


def test_cancelled(create, client, llm):
    llm.hold = True
    name = create(background=True).json()["id"]
    body = client.post(f"/v1/responses/{name}/cancel").json()
    assert body["status"] == "cancelled" and llm.opened == llm.closed
    assert client.get(f"/v1/responses/{name}").json() == body
    llm.hold = False
    foreground = create().json()
    assert client.post(f"/v1/responses/{foreground['id']}/cancel").status_code == 400
    llm.hold = True
    name = create(background=True).json()["id"]
    assert client.delete(f"/v1/responses/{name}").status_code == 200 and llm.opened == llm.closed
    names = [create(background=True).json().get("id") for _ in range(33)]
    assert names[-1] is None and None not in names[:-1]


def test_a_fault_of_the_engine(create, llm):
    llm.failure = "broken"
    assert create().status_code == 500
    events = events_of(create(stream=True))
    assert kinds(events)[-2:] == ["output_item.done", "failed"]
    response = events[-1]["response"]
    assert response["status"] == "failed" and response["error"]["code"] == "server_error"
    assert "broken" in response["error"]["message"]


def test_refusals(create):
    user = {"role": "user", "content": "Hi"}
    cases = [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [user, {"role": "tool", "content": ""}]}, "input[1].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input"),
        ({"input": [{"type": "reasoning", "content": [3]}]}, "input[0].content"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "?"}]}, "tools[1].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"temperature": 9e9}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"n": 2}, "n"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ]
    for fields, param in cases:
        answer = create(**fields)
        assert answer.status_code == 400, fields
        error = answer.json()["error"]
        assert (error["param"] or "").startswith(param), (fields, error)
        assert "messages" not in error["message"] and "completion" not in error["message"], error
    assert create(model="other").status_code == 404


class Weather(pydantic.BaseModel):
    city: str


class TestOfficial:
    @pytest.fixture
    def official(self, live):
        with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as client:
            yield client

    def test_create_and_stream(self, official, llm):
        response = official.responses.create(model="toy/model", input="Hi")
        assert response.output_text == ANSWER and response.usage.output_tokens > 0
        with official.responses.stream(model="toy/model", input="Hi") as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            assert text == ANSWER and stream.get_final_response().output_text == ANSWER
        assert official.responses.retrieve(response.id).output_text == ANSWER
        assert [item.content[0].text for item in official.responses.input_items.list(response.id)] == ["Hi"]
        official.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            official.responses.retrieve(response.id)

    def test_parse(self, official, llm):
        llm.answer = '{"city": "Brno"}'
        parsed = official.responses.parse(model="toy/model", input="Where?", text_format=Weather)
        assert parsed.output_parsed == Weather(city="Brno")
        with official.responses.stream(model="toy/model", input="Where?", text_format=Weather) as stream:
            assert stream.get_final_response().output_parsed == Weather(city="Brno")

    def test_tools_until_the_answer(self, official, llm):
        llm.answer = "<think>hm</think>" + CALL
        with official.responses.stream(model="toy/model", input="Hi", tools=[WEATHER]) as stream:
            first = stream.get_final_response()
        call = first.output[-1]
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Ďáblice"}
        llm.answer = ANSWER
        said = [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in first.output)]
        said.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        second = official.responses.create(model="toy/model", input=said, store=False)
        assert second.output_text == ANSWER and "tool\nrain" in prompt_of(llm)

    def test_background(self, official, llm):
        response = official.responses.create(model="toy/model", input="Hi", background=True)
        while response.status in ("queued", "in_progress"):
            response = official.responses.retrieve(response.id)
        assert response.output_text == ANSWER
        llm.hold = True
        held = official.responses.create(model="toy/model", input="Hi", background=True)
        assert official.responses.cancel(held.id).status == "cancelled"


def test_a_response_without_end_is_gone_with_its_server(hermes):
    llm = ScriptedLLM(*hermes, max_model_len=2048, num_blocks=256)
    llm.hold = True
    with TestClient(create_app(llm, ServerConfig(port=0)), base_url="http://127.0.0.1") as client:
        body = {"model": "toy/model", "input": "Hi", "background": True}
        assert client.post("/v1/responses", json=body).status_code == 200
        assert llm.opened == 1
    assert llm.closed == 1
