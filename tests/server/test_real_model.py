"""The real model behind the real engine: the official client's calls, and what a client that leaves gives back."""

import contextlib
import json
import time
import urllib.request

import anthropic
import openai
import pytest
from listening import listening

from octavo.config import EngineConfig
from octavo.engine.streams import AsyncLLM
from octavo.errors import MissingFileError
from octavo.server.config import ServerConfig
from octavo.weights.fetch import resolve

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def served():
    """(AsyncLLM, address) of SmolLM2 on a socket."""
    try:
        resolve("smollm2:135m")
    except MissingFileError as missing:
        pytest.skip(missing.message)
    llm = AsyncLLM(EngineConfig(model="smollm2:135m", max_model_len=1024, num_blocks=256))
    with listening(llm, ServerConfig(port=0)) as address:
        yield llm, address
    llm.close()


@pytest.fixture(scope="module")
def official(served):
    with openai.OpenAI(base_url=served[1], api_key="none", max_retries=0) as client:
        yield client


def ask(official, **fields):
    body = {"model": "smollm2:135m", "messages": QUESTION, "temperature": 0, "max_tokens": 16}
    return official.chat.completions.create(**(body | fields))


def test_streams_are_the_whole_answer(official):
    answer = ask(official)
    text = answer.choices[0].message.content
    assert "Paris" in text
    chunks = list(ask(official, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    usage = chunks[-1].usage
    assert usage.completion_tokens == answer.usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens > 0


def test_choices_with_seeds(official):
    def texts(seed):
        choices = ask(official, n=2, temperature=1.5, seed=seed, max_tokens=12).choices
        return [choice.message.content for choice in choices]

    first = texts(7)
    assert first == texts(7) and first[0] != first[1] and first != texts(8)


def test_logprobs_are_of_the_chosen_tokens(official):
    choice = ask(official, logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode().startswith(choice.message.content)
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(other.logprob for other in entry.top_logprobs) <= 0


def test_log_likelihood_of_a_prompt(official):
    body = {"model": "default", "prompt": "The capital of France is Paris", "echo": True, "temperature": 0}
    scored = official.completions.create(**body, max_tokens=0, logprobs=1).choices[0].logprobs
    assert scored.tokens[-1] == " Paris" and scored.token_logprobs[0] is None
    assert scored.token_logprobs[-1] > -3
    again = official.completions.create(**body, max_tokens=1, logprobs=1).choices[0].logprobs
    assert again.token_logprobs[: len(scored.tokens)] == scored.token_logprobs


def test_a_stop_string_cuts_text_and_tokens(official):
    whole = ask(official, logprobs=True)
    cut = ask(official, stop=" of", logprobs=True)
    text = whole.choices[0].message.content
    assert cut.choices[0].message.content == text[: text.index(" of")]
    assert cut.choices[0].finish_reason == "stop" and cut.choices[0].stop_reason == " of"
    assert len(cut.choices[0].logprobs.content) == cut.usage.completion_tokens < whole.usage.completion_tokens


def test_errors(official):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(official, messages=[{"role": "user", "content": "word " * 2000}])
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(official, max_tokens=5000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        ask(official, model="other")


def test_every_face_says_the_same(served, official):
    root = served[1].removesuffix("/v1")
    answer = ask(official)
    text = answer.choices[0].message.content
    with anthropic.Anthropic(base_url=root, api_key="none", max_retries=0) as other:
        greedy = {"temperature": 0}  # the client has no argument for it
        asked = {"model": "default", "max_tokens": 16, "messages": QUESTION, "extra_body": greedy}
        message = other.messages.create(**asked)
        with other.messages.stream(**asked) as stream:
            streamed = "".join(stream.text_stream)
        counted = other.messages.count_tokens(model="default", messages=QUESTION).input_tokens
    assert message.content[0].text == streamed == text
    assert counted == answer.usage.prompt_tokens
    options = {"temperature": 0, "num_predict": 16}
    chat = {"model": "smollm2:135m", "messages": QUESTION, "stream": False, "options": options}
    assert post(f"{root}/api/chat", chat)["message"]["content"] == text
    assert post(f"{root}/tokenize", {"messages": QUESTION})["count"] == counted


def test_a_line_that_changes_costs_no_prefix(served):
    root = served[1].removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="none", max_retries=0) as client:

        def read(mark):
            bill = {"type": "text", "text": f"x-anthropic-billing-header: cch={mark};"}
            rules = {"type": "text", "text": "Answer in one short sentence. " * 20}
            asked = {"model": "default", "max_tokens": 2, "system": [bill, rules], "messages": QUESTION}
            return client.messages.create(**asked).usage.cache_read_input_tokens

        assert read("aaaa") < 32 <= 96 <= read("bbbb")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("read", [0, 1, 3])
def test_a_client_that_leaves_frees_its_blocks(served, official, read):
    llm, _ = served
    stream = ask(official, stream=True, n=4, max_tokens=600, temperature=1.0, extra_body={"ignore_eos": True})
    for _ in zip(range(read), stream, strict=False):
        pass
    _until(lambda: llm.stats().running == 4)
    stream.close()
    steps = llm.stats().steps
    _until(lambda: _idle(llm))
    assert llm.stats().steps < steps + 300  # it did not run to its end


def test_clients_that_leave_before_their_answer(served):
    llm, live = served
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0, timeout=0.3) as hasty:
        for _ in range(3):
            with contextlib.suppress(openai.APITimeoutError):
                ask(hasty, max_tokens=900, extra_body={"ignore_eos": True})
    _until(lambda: _idle(llm))


def _idle(llm):
    stats = llm.stats()
    return stats.running == stats.waiting == 0 and stats.blocks_free + stats.blocks_cached == stats.blocks_total


def _until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
