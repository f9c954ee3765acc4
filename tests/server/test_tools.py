"""Tools and reasoning in chat completions: what the template sees, whole answers and streams, refusals."""

import json

import openai
import pytest
from scripted import ScriptedLLM

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ďáblice"}}\n</tool_call>'


def tool(**function):
    return {"type": "function", "function": function}


WEATHER, CLOCK = tool(name="weather", parameters={"type": "object"}), tool(name="clock")


@pytest.fixture
def llm(hermes):
    return ScriptedLLM(*hermes, max_model_len=1024)


def test_a_call(ask, llm):
    llm.answer = "One moment.\n" + CALL
    body = ask(tools=[WEATHER]).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "One moment."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_") and "index" not in call
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Ďáblice"}
    prompt = llm.tokenizer.decode(llm.calls[0]["prompt"], skip_special=False)
    assert prompt.startswith(json.dumps([WEATHER], ensure_ascii=False))


def test_calls_alone_have_no_content(ask, llm):
    llm.answer = CALL + CALL
    message = ask(tools=[WEATHER]).json()["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 2
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_a_streamed_call(ask, llm, parsed):
    llm.answer = "Well: " + CALL + CALL
    choices = [chunk["choices"][0] for chunk in parsed(ask(stream=True, tools=[WEATHER]))]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Well:"
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert all(call["id"] and call["type"] == "function" and call["function"]["name"] == "weather" for call in calls)
    assert json.loads(calls[1]["function"]["arguments"]) == {"city": "Ďáblice"}
    assert [choice["finish_reason"] for choice in choices][-1] == "tool_calls"


def test_the_official_client_loops_over_a_tool(live, llm):
    llm.answer = "<think>a</think>" + CALL
    asked = {"model": "toy/model", "messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER]}
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as official:
        with official.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls[0].function.arguments == '{"city": "Ďáblice"}'
        llm.answer = "Sunny."
        told = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}
        asked["messages"] += [message.to_dict(), told]
        answer = official.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "Sunny." and answer.choices[0].finish_reason == "stop"
    assert "None" not in llm.tokenizer.decode(llm.calls[-1]["prompt"])


def test_one_call_at_most(ask, llm):
    llm.answer = CALL + CALL
    choice = ask(tools=[WEATHER], parallel_tool_calls=False).json()["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == "tool_calls"


def test_reasoning_stands_apart(ask, llm, parsed):
    llm.answer = "<think>\nHm.\n</think>\n\nYes."
    message = ask().json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    llm.answer = "Hm.</think>Yes."
    message = ask(chat_template_kwargs={"thinking": True}).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    deltas = [
        chunk["choices"][0]["delta"] for chunk in parsed(ask(stream=True, chat_template_kwargs={"thinking": True}))
    ]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."


def test_t5_bytes_that_are_no_text_leave_the_call_intact(ask, llm):
    broken = [token for token in range(300) if llm.tokenizer.token_bytes(token) in (b"\xe6", b"\x80")]
    assert len(broken) == 2
    encode = llm.tokenizer.encode
    llm.script = [*encode("<think>"), *broken, *encode("=</think>" + CALL), *llm.tokenizer.eos_ids]
    choice = ask(tools=[WEATHER]).json()["choices"][0]
    assert "\ufffd" in choice["message"]["reasoning_content"] and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_what_is_no_call_is_text(ask, llm):
    llm.answer = "<tool_call>oops</tool_call>"
    choice = ask(tools=[WEATHER]).json()["choices"][0]
    assert choice["message"]["content"] == llm.answer and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    llm.answer = CALL
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = ask(**fields).json()["choices"][0]
        assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"


def test_a_call_that_was_cut_off_is_no_call(ask, llm):
    llm.answer = CALL
    choice = ask(tools=[WEATHER], max_tokens=20).json()["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def test_log_probabilities_come_once_for_every_token(ask, llm, parsed):
    llm.answer = "<think>a</think>b" + CALL
    whole = ask(tools=[WEATHER], logprobs=True).json()["choices"][0]["logprobs"]["content"]
    chunks = parsed(ask(stream=True, tools=[WEATHER], logprobs=True))
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", ())]
    assert streamed == whole and b"".join(bytes(entry["bytes"]) for entry in whole[:-1]).decode() == llm.answer


def test_allowed_tools_are_those_that_are_shown(ask, llm):
    named = [{"type": "function", "function": {"name": "clock"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    assert ask(tools=[WEATHER, CLOCK], tool_choice=choice).status_code == 200
    prompt = llm.tokenizer.decode(llm.calls[-1]["prompt"], skip_special=False)
    assert "clock" in prompt and "weather" not in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [tool(name="a", strict=True)]}, "tools[0].function.strict"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1]"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tools": [CLOCK], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": 7}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"allowed_tools": {"tools": [WEATHER]}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"allowed_tools": {"mode": "required", "tools": [CLOCK]}}}, "tool_choice"),
        ({"tools": "clock"}, "tools"),
        ({"tools": [CLOCK], "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_refusals_name_the_field(ask, fields, param):
    response = ask(**fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_template_without_tools_refuses_them(ask, llm, tokenizer):
    llm.tokenizer = tokenizer
    response = ask(tools=[CLOCK])
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"
    assert ask(tools=[], tool_choice=None).status_code == 200
