"""/v1/chat/completions: shapes, streams, log-probabilities, options."""

import json

import pytest
from scripted import ANSWER


def test_an_answer(ask, llm):
    response = ask()
    body = response.json()
    assert response.status_code == 200 and response.headers["content-type"] == "application/json"
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["model"] == "toy/model" and body["system_fingerprint"].startswith("fp_")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(llm.calls[0]["prompt"])
    assert usage["completion_tokens"] == len(llm.tokenizer.encode(ANSWER)) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
    assert llm.tokenizer.decode(llm.calls[0]["prompt"], skip_special=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_stream(ask, parsed):
    response = ask(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = parsed(response)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
    assert not any("\ufffd" in delta.get("content", "") for delta in deltas)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_as_far_as_it_has_come(ask, parsed):
    told = {"include_usage": True, "continuous_usage_stats": True}
    chunks = parsed(ask(stream=True, stream_options=told))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and 1 <= counts[0] < counts[-1]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {chunks[-1]["usage"]["prompt_tokens"]}
    (alone,) = {"usage" in chunk for chunk in parsed(ask(stream=True, stream_options={"continuous_usage_stats": True}))}
    assert not alone


def test_usage_in_a_stream(ask, parsed):
    *chunks, last = parsed(ask(stream=True, stream_options={"include_usage": True}))
    assert last["choices"] == [] and last["usage"] == ask().json()["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("usage" not in chunk for chunk in parsed(ask(stream=True, stream_options={})))


def test_two_choices_in_a_stream(ask, parsed, llm):
    chunks = parsed(ask(stream=True, n=2))
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == ANSWER
        assert [choice["finish_reason"] for choice in own].count("stop") == 1
    assert llm.opened == llm.closed == 1


def test_choices_and_usage_count_all(ask):
    body = ask(n=3).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 3 * ask().json()["usage"]["completion_tokens"]


def test_logprobs_hold_the_bytes_of_tokens(ask, llm):
    choice = ask(logprobs=True, top_logprobs=2).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content[:-1]).decode() == ANSWER
    assert content[-1]["token"] == "<|im_end|>"
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert content[0]["top_logprobs"][0] == {key: content[0][key] for key in ("token", "logprob", "bytes")}
    broken = [entry["token"] for entry in content if entry["bytes"] == [0xC4]]
    assert broken == ["bytes:\\xc4"]


def test_logprobs_alone_have_no_alternatives(ask, parsed):
    content = ask(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["logprob"] == -0.25 and content[0]["top_logprobs"] == []
    streamed = [
        entry
        for chunk in parsed(ask(logprobs=True, stream=True))
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_stop_strings_and_lengths(ask):
    choice = ask(stop=" brown").json()["choices"][0]
    assert choice["message"]["content"] == "The quick"
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == " brown"
    assert ask(stop=["fox"], include_stop_str_in_output=True).json()["choices"][0]["message"]["content"].endswith("fox")
    for field in ("max_tokens", "max_completion_tokens"):
        body = ask(**{field: 2}).json()
        assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 2


def test_extensions_reach_the_engine(ask, llm):
    fields = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "min_tokens": 3,
        "stop_token_ids": [7],
        "allowed_token_ids": [5, 6],
        "bad_words": ["x"],
        "seed": 42,
        "temperature": 0.5,
        "top_p": 0.9,
        "logit_bias": {"5": 1.5},
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
    }
    assert ask(**fields).status_code == 200
    params = llm.calls[0]["params"]
    for name, value in fields.items():
        expected = {"logit_bias": {5: 1.5}}.get(name, tuple(value) if isinstance(value, list) else value)
        assert getattr(params, name) == expected


def test_token_ids_on_request(ask, llm, parsed):
    body = ask(return_token_ids=True, prompt_logprobs=1).json()
    ids = [*llm.tokenizer.encode(ANSWER), 2]
    assert body["choices"][0]["token_ids"] == ids
    assert body["prompt_token_ids"] == list(llm.calls[0]["prompt"])
    assert body["prompt_logprobs"][0] is None and len(body["prompt_logprobs"]) == len(body["prompt_token_ids"])
    chunks = parsed(ask(return_token_ids=True, stream=True))
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == ids
    assert chunks[0]["prompt_token_ids"] == body["prompt_token_ids"]


def test_default_length_is_what_fits(ask, llm):
    ask()
    assert llm.calls[0]["params"].max_tokens == llm.info.max_model_len - len(llm.calls[0]["prompt"])


def test_template_arguments(ask, llm):
    ask(chat_template_kwargs={"thinking": True}, add_generation_prompt=False)
    assert llm.tokenizer.decode(llm.calls[0]["prompt"], skip_special=False).endswith("<|im_end|>\n<think>")
    assert ask(reasoning_effort="low").status_code == 200


def test_prompt_cache_key_salts(ask, llm):
    for key in (..., "a", "a", "b"):
        ask(prompt_cache_key=key)
    salts = [call["salt"] for call in llm.calls]
    assert salts[0] == "" and salts[1] == salts[2] != "" and salts[3] not in salts[:3]


IGNORED = {
    "user": "u",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_retention": "24h",
    "parallel_tool_calls": True,
    "verbosity": "medium",
    "modalities": ["text"],
    "tools": [],
    "tool_choice": None,
    "response_format": {"type": "text"},
    "max_tokens": None,
}


def test_fields_without_effect(ask, llm):
    plain = ask().json()["choices"]
    for name, value in IGNORED.items():
        response = ask(**{name: value})
        assert response.status_code == 200 and response.json()["choices"] == plain, name
    assert ask(tool_choice="auto").status_code == 200


def test_history_with_nulls(ask, llm):
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": None}}
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "y", "tool_call_id": "call_0"},
        {"role": "assistant", "content": "z", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]},
    ]
    assert ask(messages=history).status_code == 200
    ids = llm.calls[0]["prompt"]
    assert "None" not in llm.tokenizer.decode(ids) and ids.count(2) == 5


def test_an_engine_fault_inside_a_stream_is_an_event(ask, llm):
    llm.failure = "NaN in the logits"
    lines = [line for line in ask(stream=True).text.split("\n\n") if line]
    last = json.loads(lines[-1].removeprefix("data: "))
    assert last["error"]["type"] == "server_error" and "NaN in the logits" in last["error"]["message"]
    response = ask()
    assert response.status_code == 500 and response.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_shows_no_exception(ask, llm, stream, monkeypatch):
    monkeypatch.setattr(llm, "_delta", lambda *_: 1 / 0)
    text = ask(stream=stream).text
    assert "internal error" in text and "Zero" not in text and "Traceback" not in text


def test_an_engine_that_stopped_takes_nothing(ask, llm, client):
    from octavo.errors import EngineError

    assert client.get("/health").json()["status"] == "ready"
    llm.error = EngineError("gone")
    response = ask()
    assert response.status_code == 503 and response.headers["retry-after"]
    assert client.get("/health/ready").status_code == 503
    assert client.get("/health/live").status_code == 200


def test_t40_parts_of_the_interface_that_were_wrong_elsewhere(ask, parsed):
    chunks = parsed(ask(stream=True, stream_options={}))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    assert ask(tool_choice=None).json()["object"] == ask(stream=False).json()["object"] == "chat.completion"
    for limit, reason in ((2, "length"), (100, "stop")):
        chunks = parsed(ask(stream=True, n=2, max_tokens=limit))
        ends = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        assert sorted((end["index"], end["finish_reason"]) for end in ends) == [(0, reason), (1, reason)]
    assert ask.text(prompt=[""]).status_code == 400
