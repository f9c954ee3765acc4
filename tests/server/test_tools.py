"""Tools and reasoning in chat completions: what the template sees, whole answers and streams, refusals."""

import json

import openai
import pydantic
import pytest
from scripted import ScriptedLLM

from octavo.grammar.structures import Structures

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
        ({"tools": [tool(name="a", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool(name="a", strict=True, parameters={"not": {}})]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"thinking_budget": 3, "thinking_token_budget": 4}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"thinking_budget": "x"}}, "chat_template_kwargs.thinking_budget"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1]"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tools": [CLOCK], "tool_choice": 7}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"allowed_tools": {"tools": [WEATHER]}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"allowed_tools": {"mode": "any", "tools": [CLOCK]}}}, "tool_choice"),
        ({"tools": "clock"}, "tools"),
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


def bound(llm, text):
    """Whether the structure of the last request allows this text to its end."""
    structures = Structures(lambda: llm.tokenizer)
    matcher = structures.matcher(llm.calls[-1]["params"].structure)
    for token in [*llm.tokenizer.encode(text), llm.tokenizer.eos_ids[0]]:
        if not matcher.mask()[token >> 5] >> (token & 31) & 1:
            return False
        matcher.accept([token])
    return True


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRICT = tool(name="weather", parameters=CITY, strict=True)
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"tool_choice": "required"}, [OSLO, TIME, f"{OSLO}\n{TIME}", f"<think>Hm.</think>\n{OSLO}"], ["Hi", ""]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [OSLO], [f"{OSLO}\n{TIME}"]),
        ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, [TIME], [OSLO, "Hi"]),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}}},
            [TIME],
            [OSLO, "Hi"],
        ),
        ({}, ["Hi", "", f"Well: {OSLO}"], [OSLO.replace('"Oslo"', "7"), "<tool_call>{}"]),
        (
            {"response_format": {"type": "json_object"}},
            [OSLO, '{"a": 1}', f"<think>Hm.</think>{OSLO}"],
            ["Hi", OSLO.replace('"Oslo"', "7")],
        ),
        ({"tool_choice": "required", "chat_template_kwargs": {"thinking": True}}, [f"Hm.</think>{OSLO}"], [OSLO]),
    ],
)
def test_what_an_output_is_bound_to(ask, llm, fields, good, bad):
    llm.answer = OSLO
    assert ask(tools=[STRICT, CLOCK], **fields).status_code == 200
    assert [bound(llm, text) for text in good] == [True] * len(good)
    assert [bound(llm, text) for text in bad] == [False] * len(bad)


def test_calls_that_need_no_bounds_have_none(ask, llm):
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        assert ask(tools=[WEATHER, CLOCK], **fields).status_code == 200
        assert llm.calls[-1]["params"].structure is None


def test_schemas_that_cannot_be_enforced_are_let_go_of_tools_that_are_not_strict(ask, llm):
    odd = tool(name="odd", parameters={"type": "object", "properties": {"x": {"type": "any"}}})
    llm.answer = TIME
    assert ask(tools=[odd, CLOCK], tool_choice="required").status_code == 200
    assert bound(llm, '<tool_call>\n{"name": "odd", "arguments": {"x": [1]}}\n</tool_call>') and not bound(llm, "Hi")
    response = ask(tools=[tool(**odd["function"], strict=True), CLOCK], tool_choice="required")
    assert response.status_code == 400 and "odd" in response.json()["error"]["message"]
    response = ask(tools=[tool(name="odd", parameters={"type": "string"}, strict=True)], tool_choice="required")
    said = response.json()["error"]["message"]
    assert response.status_code == 400 and said.startswith("tools: odd: type cannot be enforced")


def test_budgets_of_thinking(ask, llm):
    for fields in (
        {"thinking_budget": 12},
        {"thinking_token_budget": 12},
        {"chat_template_kwargs": {"thinking_budget": 12}},
    ):
        assert ask(**fields).status_code == 200
        assert llm.calls[-1]["params"].thinking_budget == 12
    assert ask(reasoning_effort="none").status_code == 200
    assert llm.calls[-1]["params"].thinking_budget == 0
    assert ask(reasoning_effort="high").status_code == 200
    assert llm.calls[-1]["params"].thinking_budget is None
    assert llm.tokenizer.decode(llm.calls[-1]["prompt"], skip_special=False).endswith("<think>\n")


class Weather(pydantic.BaseModel):
    """Of a city."""

    city: str
    days: int | None


class Report(pydantic.BaseModel):
    sunny: bool


def test_the_official_client_parses_strict_calls_and_formats(live, llm):
    asked = {"model": "toy/model", "messages": [{"role": "user", "content": "Hi"}]}
    tools = [openai.pydantic_function_tool(Weather, name="weather")]
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as official:
        llm.answer = OSLO.replace('"Oslo"', '"Oslo", "days": null')
        answer = official.chat.completions.parse(**asked, tools=tools, tool_choice="required")
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.parsed_arguments == Weather(city="Oslo", days=None)
        assert bound(llm, llm.answer) and not bound(llm, llm.answer.replace("null", '"x"'))
        llm.answer = '{"sunny": true}'
        answer = official.chat.completions.parse(**asked, tools=tools, response_format=Report)
        assert answer.choices[0].message.parsed == Report(sunny=True)
        assert bound(llm, llm.answer) and not bound(llm, '{"sunny": 1}')
