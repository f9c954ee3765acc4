"""Whatever JSON a body holds: an answer or a refusal in the usual shape, never a fault of ours, never a dead engine."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.server.openai.fields import IGNORED, UNSUPPORTED
from octavo.server.openai.shapes import ChatRequest, CompletionRequest

VALUES = [
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63), 2**70, 0.5, -0.5, 1e308, 5e-324),
    *("", "x", "1", "\x00", "a" * 300),
    *([], [None], [1], [-1], [2**40], ["x"], [""], [[1]], [[]], [{}]),
    *({}, {"a": 1}, {"1": 1}, {"1": 1e300}, {"a": [1]}, {"type": "text"}),
]
MESSAGES = [
    [{"role": "user", "content": "x"}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [1]}],
    [{"role": "user", "content": {}}],
    [{"role": ["user"], "content": "x"}],
    [{"role": "user", "content": "x", "name": {"a": 1}}],
    [{"role": "assistant", "content": "x", "tool_calls": [1]}],
    [{"role": "assistant", "tool_calls": {"a": 1}}],
    [{"role": "assistant", "tool_calls": [{"function": {"arguments": [1]}}]}],
    [{"role": "tool", "content": "x", "tool_call_id": 5}],
]
SHAPES = {"chat": ChatRequest, "text": CompletionRequest}
FIELDS = [
    (kind, name)
    for kind, shape in SHAPES.items()
    for name in [*(field.encode_name for field in msgspec.structs.fields(shape)), *IGNORED, *UNSUPPORTED, "", "x"]
]


def send(ask, kind, **fields):
    response = (ask if kind == "chat" else ask.text)(**{"max_tokens": 2} | fields)
    if fields.get("stream") is True and response.status_code == 200:
        assert response.text.endswith("data: [DONE]\n\n")
        return
    body = response.json()
    if response.status_code == 200:
        assert body["choices"]
    else:
        assert response.status_code in (400, 404), (fields, body)
        assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_field_with_every_kind_of_value(ask, llm, kind, name):
    for value in VALUES + (MESSAGES if name == "messages" else []):
        send(ask, kind, **{name: value})
    assert llm.opened == llm.closed


numbers = st.integers(-3, 25) | st.sampled_from([0.0, 0.3, 1.0, 1.5, 2.5, 100.0])
bodies = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(0, 9),
        "temperature": numbers,
        "top_p": numbers,
        "top_k": st.integers(-2, 400),
        "min_p": numbers,
        "max_tokens": st.integers(0, 300),
        "min_tokens": st.integers(0, 300),
        "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3),
        "logprobs": st.booleans() | st.integers(-1, 21),
        "prompt_logprobs": st.integers(-1, 21),
        "echo": st.booleans(),
        "stream": st.booleans(),
        "stream_options": st.sampled_from([None, {}, {"include_usage": True}]),
        "return_token_ids": st.booleans(),
        "prompt": st.lists(st.integers(0, 299), max_size=5) | st.lists(st.text(max_size=4), max_size=4),
        "logit_bias": st.dictionaries(st.integers(0, 400).map(str), numbers, max_size=3),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(["chat", "text"]), fields=bodies)
def test_combinations(ask, llm, kind, fields):
    send(ask, kind, **fields)
    assert llm.opened == llm.closed
