"""/v1/completions: prompts of every kind, echo, log-probabilities of the prompt."""

import pytest
from scripted import ANSWER, ScriptedLLM
from tokenizers import Tokenizer as Core

from octavo.text.tokenizer import Tokenizer


def test_an_answer(ask, llm):
    body = ask.text().json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert choice["text"] == ANSWER and choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert llm.calls[0]["prompt"] == tuple(llm.tokenizer.encode("Hi"))


def test_a_stream(ask, parsed):
    chunks = parsed(ask.text(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == ANSWER
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens"] == 2
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]].count("stop") == 1


def test_prompts_of_every_kind(ask, llm):
    ids = llm.tokenizer.encode("Hi")
    for prompt, count in (("Hi", 1), (["Hi", "The"], 2), (ids, 1), ([ids, ids, ids], 3), (["Hi", ids], 2)):
        llm.calls.clear()
        body = ask.text(prompt=prompt, n=2).json()
        assert [choice["index"] for choice in body["choices"]] == list(range(2 * count))
        assert all(choice["text"] == ANSWER for choice in body["choices"])
        assert len(llm.calls) == count and llm.calls[-1]["prompt"] in (tuple(ids), tuple(llm.tokenizer.encode("The")))
        assert body["usage"]["prompt_tokens"] == sum(len(call["prompt"]) for call in llm.calls)
    assert llm.opened == llm.closed


def test_streams_of_several_prompts(ask, parsed):
    chunks = parsed(ask.text(prompt=["Hi", "The"], stream=True, n=2))
    for index in range(4):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == ANSWER
        assert [choice["finish_reason"] for choice in own].count("stop") == 1


def test_special_tokens_in_a_raw_prompt_are_tokens(ask, llm):
    ask.text(prompt="<|im_start|>user")
    assert llm.calls[0]["prompt"][0] == 1


def test_echo(ask, llm, parsed):
    assert ask.text(echo=True).json()["choices"][0]["text"] == "Hi" + ANSWER
    assert ask.text(echo=True, prompt=llm.tokenizer.encode("The")).json()["choices"][0]["text"] == "The" + ANSWER
    chunks = parsed(ask.text(echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hi" + ANSWER


def test_echo_alone_runs_nothing(ask, llm):
    body = ask.text(echo=True, max_tokens=0).json()
    assert body["choices"][0]["text"] == "Hi" and body["choices"][0]["finish_reason"] == "length"
    assert llm.calls == [] and body["usage"]["completion_tokens"] == 0


def test_log_likelihood_of_a_prompt(ask, llm):
    prompt = "The fox \N{HOT PEPPER}"
    ids = llm.tokenizer.encode(prompt)
    choice = ask.text(prompt=prompt, echo=True, max_tokens=0, logprobs=2).json()["choices"][0]
    shown = choice["logprobs"]
    assert choice["text"] == prompt
    assert len(shown["tokens"]) == len(shown["token_logprobs"]) == len(shown["top_logprobs"]) == len(ids)
    assert shown["token_logprobs"][0] is None and shown["top_logprobs"][0] is None
    assert shown["token_logprobs"][1:] == [-0.25] * (len(ids) - 1)
    assert shown["tokens"][-4:] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8c", "bytes:\\xb6"]
    assert shown["text_offset"][-4:] == [8, 8, 8, 8]
    assert all(
        prompt[at:].startswith(token) for at, token in zip(shown["text_offset"][:-4], shown["tokens"], strict=False)
    )
    assert len(shown["top_logprobs"][1]) == 2


def test_logprobs_with_echo_cover_both(ask, llm):
    for n in (1, 2):
        body = ask.text(echo=True, logprobs=0, n=n).json()
        for choice in body["choices"]:
            count = len(llm.tokenizer.encode("Hi")) + len(llm.tokenizer.encode(ANSWER)) + 1
            assert len(choice["logprobs"]["tokens"]) == count


def test_logprobs_in_a_stream_continue_their_offsets(ask, parsed):
    whole = ask.text(logprobs=1).json()["choices"][0]["logprobs"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in parsed(ask.text(logprobs=1, stream=True))]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [entry for chunk in chunks for entry in chunk[name]] == whole[name]


def test_token_ids_on_request(ask, llm):
    choice = ask.text(return_token_ids=True, prompt_logprobs=0).json()["choices"][0]
    assert choice["prompt_token_ids"] == llm.tokenizer.encode("Hi")
    assert choice["token_ids"] == [*llm.tokenizer.encode(ANSWER), 2]
    assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])


def test_unsupported_and_impossible(ask):
    cases = [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1, "n": 2, "stream": True}, "n"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ["x"] * 33}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ...}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"messages": []}, "messages"),
    ]
    for fields, param in cases:
        response = ask.text(**fields)
        assert response.status_code == 400 and response.json()["error"]["param"] == param, fields
    assert ask.text(n=2, best_of=2).status_code == 200


class TestInfill:
    @pytest.fixture
    def llm(self, tokenizer, template, tmp_path):
        tokenizer._core.save(str(tmp_path / "tokenizer.json"))
        core = Core.from_file(str(tmp_path / "tokenizer.json"))
        core.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
        core.save(str(tmp_path / "tokenizer.json"))
        return ScriptedLLM(Tokenizer.from_files(tmp_path / "tokenizer.json", {"eos_token": "<|im_end|>"}), template)

    def test_text_around_a_gap(self, ask, llm, parsed):
        body = ask.text(prompt=["a(", ""], suffix=")<|fim_suffix|>").json()
        assert [choice["text"] for choice in body["choices"]] == [ANSWER, ANSWER]
        shown = [llm.tokenizer.decode(call["prompt"], skip_special=False) for call in llm.calls]
        tail = "<|fim_suffix|>)<|fim_suffix|><|fim_middle|>"
        assert shown == [f"<|fim_prefix|>a({tail}", f"<|fim_prefix|>{tail}"]
        marks = [llm.tokenizer.encode(mark, parse_special=True)[0] for mark in ("<|fim_prefix|>", "<|fim_suffix|>")]
        assert [llm.calls[0]["prompt"].count(mark) for mark in marks] == [1, 1]
        assert set(marks) < set(llm.calls[0]["params"].stop_token_ids)
        chunks = parsed(ask.text(suffix=")", stream=True))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == ANSWER

    def test_refusals(self, ask):
        for fields, param in (({"echo": True}, "echo"), ({"prompt": [5, 6]}, "prompt"), ({"suffix": ["x"]}, "suffix")):
            response = ask.text(**{"suffix": ")"} | fields)
            assert response.status_code == 400 and response.json()["error"]["param"] == param
        assert ask.text(suffix="").status_code == 200
