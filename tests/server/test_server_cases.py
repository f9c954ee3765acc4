"""Reported faults of other engines, met over HTTP on a real engine. The letters are those of tests/CASES.md.

The model's greedy answer is known (chain_model.py).
"""

import pytest
from chain_model import SECOND_END, byte_ids, write_chain
from starlette.testclient import TestClient

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.server.app import create_app
from octavo.server.config import ServerConfig

# Chat ends with "assistant: ", whose last token has no scripted successor; the message ends the prompt here.
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    write_chain(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture(scope="module")
def http(path):
    llm = AsyncLLM(EngineConfig(model=path, served_model_name="chain", threads=1, num_blocks=64))
    with TestClient(create_app(llm, ServerConfig(port=0)), base_url="http://127.0.0.1") as client:
        yield client
        stats = llm.stats()
        assert stats.running == stats.waiting == 0
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    llm.close()


@pytest.fixture
def complete(http):
    def post(prompt, **fields):
        body = {"model": "chain", "prompt": prompt, "temperature": 0, "max_tokens": 12} | fields
        return http.post("/v1/completions", json=body)

    return post


@pytest.fixture
def chat(http):
    def post(content, **fields):
        messages = [{"role": "user", "content": content}]
        body = {"model": "chain", "messages": messages, "temperature": 0, "max_tokens": 12} | fields
        return http.post("/v1/chat/completions", json=body)

    return post


def text_of(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def pieces(parsed, response):
    """Texts of the chunks of a stream of completions."""
    assert response.status_code == 200, response.text
    return [chunk["choices"][0]["text"] for chunk in parsed(response)]


def test_t1_a_prompt_that_ends_inside_a_character(complete, parsed):
    prompt = [*byte_ids("Hello world "), *byte_ids("🌶")[:3]]
    assert text_of(complete(prompt)) == "🌶"
    assert "".join(pieces(parsed, complete(prompt, stream=True))) == "🌶"


def test_t2_t4_characters_and_spaces_come_whole(complete, parsed):
    for prompt, text in (("d", "ďábel"), ("=", " hi"), ("!", "🌶")):
        assert text_of(complete(prompt)) == text
        parts = pieces(parsed, complete(prompt, stream=True))
        assert "".join(parts) == text and not any("\ufffd" in part for part in parts)


def test_t6_t7_stop_strings(complete, parsed):
    parts = pieces(parsed, complete("ABC", stream=True, stop="DEFGHIJ"))
    assert "".join(parts) == "" == text_of(complete("ABC", stop=["DEFGHIJ"]))
    body = complete("ABC", stop="DEFGHIJ").json()
    assert body["choices"][0]["finish_reason"] == "stop" and body["usage"]["completion_tokens"] == 7
    for stop in (["ZZZZ"], ["JKL"]):
        parts = pieces(parsed, complete("ABC", stream=True, max_tokens=8, stop=stop))
        assert "".join(parts) == "DEFGHIJK" == text_of(complete("ABC", max_tokens=8, stop=stop))
        assert all(parts[:-1])


def test_t10_every_end_of_text_waits_for_min_tokens(complete):
    assert complete("?", return_token_ids=True).json()["choices"][0]["token_ids"] == [SECOND_END]
    bias = {"257": 50, "258": 100}
    late = complete("?", min_tokens=5, logit_bias=bias, return_token_ids=True).json()["choices"][0]["token_ids"]
    assert len(late) == 6 and not {257, 258} & set(late[:5])


def test_t11_one_begin_token_on_every_path(complete, chat):
    bos, fields = 256, {"return_token_ids": True, "max_tokens": 1}
    for prompt in ("ABC", "<s>ABC"):
        body = complete(prompt, **fields).json()
        ids = body["choices"][0].get("prompt_token_ids") or body["prompt_token_ids"]
        assert ids == [bos, *byte_ids("ABC")]
    ids = chat("hi <s> ABC", **fields).json()["prompt_token_ids"]
    assert ids[0] == bos and ids.count(bos) == 1
    assert chat("ABC", max_tokens=3).json()["choices"][0]["message"]["content"] == "DEF"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"191222": -100}),
        ("allowed_token_ids", [191222]),
        ("stop_token_ids", [191222]),
        ("bad_words", [""]),
    ],
)
def test_t17_ids_outside_the_vocabulary(complete, chat, field, value):
    for ask in (complete, chat):
        response = ask("ABC", **{field: value})
        assert response.status_code == 400 and response.json()["error"]["param"] == field
    assert text_of(complete("ABC", max_tokens=2)) == "DE"


def test_t19_too_many_alternatives(chat, complete):
    for count in (100, 10**6):
        response = chat("ABC", logprobs=True, top_logprobs=count)
        assert response.status_code == 400 and response.json()["error"]["param"] == "top_logprobs"
    assert text_of(complete("ABC", max_tokens=2)) == "DE"


def test_t21_bytes_of_an_emoji(chat, parsed):
    """Each token of the answer is one byte of it: `bytes` holds that byte, and the alternatives have their own."""
    fields = {"logprobs": True, "top_logprobs": 5, "max_tokens": 4}
    whole = chat("!", **fields).json()["choices"][0]
    assert whole["message"]["content"] == "🌶"
    streamed = parsed(chat("!", stream=True, **fields))
    entries = [chunk["choices"][0].get("logprobs") or {"content": []} for chunk in streamed]
    for content in (whole["logprobs"]["content"], [place for entry in entries for place in entry["content"]]):
        assert bytes(byte for place in content for byte in place["bytes"]).decode() == "🌶"
        for place in content:
            assert len(place["top_logprobs"]) == 5 and place["top_logprobs"][0]["bytes"] == place["bytes"]
            assert len({tuple(other["bytes"]) for other in place["top_logprobs"]}) == 5


def test_t23_a_prompt_that_is_all_cached(complete):
    prompt = [i % 250 for i in range(32)]
    cold, warm = (complete(prompt).json() for _ in range(2))
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 31


def test_the_name_that_was_asked_for_comes_back(complete, chat):
    assert complete("ABC").json()["model"] == chat("ABC").json()["model"] == "chain"


@pytest.mark.parametrize("name", ["self", "tokenizer", "source", "not a name"])
def test_any_name_may_go_to_the_template(chat, name):
    assert chat("ABC", chat_template_kwargs={name: 1}).status_code == 200


def test_a_prompt_that_is_too_long_is_no_shorter_prompt(complete):
    response = complete([1] * 300)
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
    assert "300" in response.json()["error"]["message"] and "256" in response.json()["error"]["message"]
