"""Whatever a field of the other faces holds: an answer or a refusal in that face's shape, never a fault of ours."""

import msgspec
import pytest
from scripted import ScriptedLLM
from test_any_json import VALUES

from octavo.server.anthropic.shapes import ACCEPTED, CountRequest, MessagesRequest
from octavo.server.ollama.shapes import ChatBody, EmbedBody, GenerateBody, Options
from octavo.server.own.scores import RerankRequest, ScoreRequest
from octavo.server.own.tokens import DetokenizeRequest, TokenizeRequest

HI = [{"role": "user", "content": "x"}]
BLOCKS = [
    [{"role": role, "content": [block]}, *HI]
    for role in ("user", "assistant", "system")
    for block in (
        {"type": "text", "text": "x"},
        {"type": "text", "text": None},
        {"type": "thinking", "thinking": "x", "signature": 5},
        {"type": "redacted_thinking"},
        {"type": "tool_use", "id": "i", "name": "f", "input": {"a": [1, None]}},
        {"type": "tool_use", "id": "i", "name": "f", "input": 3},
        {"type": "tool_result", "tool_use_id": "i"},
        {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "image"}]},
        {"type": "tool_result", "tool_use_id": 5, "content": {}},
        {"type": "image", "source": {}},
        {"type": "mystery"},
        {},
        "x",
    )
]
BODIES = {
    "/v1/messages": ({"model": "default", "max_tokens": 2, "messages": HI}, MessagesRequest),
    "/v1/messages/count_tokens": ({"model": "default", "messages": HI}, CountRequest),
    "/api/chat": ({"model": "default", "messages": HI, "options": {"num_predict": 2}}, ChatBody),
    "/api/generate": ({"model": "default", "prompt": "x", "options": {"num_predict": 2}}, GenerateBody),
    "/api/embed": ({"model": "default", "input": "x"}, EmbedBody),
    "/tokenize": ({"prompt": "x"}, TokenizeRequest),
    "/detokenize": ({"tokens": [5]}, DetokenizeRequest),
    "/rerank": ({"query": "x", "documents": ["y"]}, RerankRequest),
    "/score": ({"text_1": "x", "text_2": "y"}, ScoreRequest),
}
FIELDS = [
    (path, field)
    for path, (_, shape) in BODIES.items()
    for field in [*(field.encode_name for field in msgspec.structs.fields(shape)), "model", "keep_alive", "", "x"]
] + [("/v1/messages", field) for field in ACCEPTED]


@pytest.fixture
def llm(hermes):
    return ScriptedLLM(*hermes, max_model_len=1024)


def check(path, response, sent):
    if response.status_code == 200:
        assert '"error"' not in response.text, sent
        return
    assert response.status_code in (400, 404), (sent, response.text)
    body = response.json()
    if path.startswith("/api"):
        assert body.keys() == {"error"} and isinstance(body["error"], str)
    elif path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error", "request_id"} and body["error"]["message"]
    else:
        assert body["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_every_field_with_every_kind_of_value(client, llm, path, field):
    base, _ = BODIES[path]
    for value in VALUES + (BLOCKS if field == "messages" else []):
        check(path, client.post(path, json=base | {field: value}), (field, value))
    assert llm.opened == llm.closed


@pytest.mark.parametrize("option", [field.encode_name for field in msgspec.structs.fields(Options)])
def test_every_option_with_every_kind_of_value(client, llm, option):
    for value in VALUES:
        body = BODIES["/api/generate"][0] | {"options": {"num_predict": 2, option: value}}
        check("/api/generate", client.post("/api/generate", json=body), (option, value))
    assert llm.opened == llm.closed


def deep(path, depth):
    value = '{"a":' * depth + "1" + "}" * depth
    call = f'{{"role":"assistant","content":[{{"type":"tool_use","id":"i","name":"f","input":{value}}}]}}'
    held = {
        "/v1/messages": f'"messages":[{call},{{"role":"user","content":"x"}}],"max_tokens":2',
        "/v1/chat/completions": f'"messages":[{{"role":"user","content":"x"}}],"chat_template_kwargs":{value}',
        "/v1/completions": f'"prompt":"x","max_tokens":2,"structured_outputs":{{"json":{value}}}',
        "/api/chat": f'"messages":[{{"role":"user","content":"x"}}],"tools":[{value}]',
        "/api/generate": f'"prompt":"x","format":{value}',
    }
    return f'{{"model":"default",{held[path]}}}'


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate"]
)
def test_what_is_nested_too_deeply_is_no_fault_of_ours(client, llm, path):
    for depth in (300, 600, 800, 900, 940, 955, 965, 975, 2000):
        response = client.post(path, content=deep(path, depth), headers={"content-type": "application/json"})
        assert response.status_code in (200, 400), (depth, response.text)
    assert llm.opened == llm.closed
