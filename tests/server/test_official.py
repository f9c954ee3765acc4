"""What the official client makes of chat completions: parsed answers, its stream helper, its own messages sent back."""

import openai
import pydantic
import pytest

MESSAGES = [{"role": "user", "content": "Where?"}]


class Place(pydantic.BaseModel):
    city: str


@pytest.fixture
def official(live):
    with openai.OpenAI(base_url=live, api_key="none", max_retries=0) as client:
        yield client.chat.completions


def test_parse(official, llm):
    llm.answer = '{"city": "Ďáblice"}'
    answer = official.parse(model="toy/model", messages=MESSAGES, response_format=Place)
    message = answer.choices[0].message
    assert message.parsed == Place(city="Ďáblice") and message.refusal is None
    assert "city" in llm.calls[0]["params"].structure.source
    history = [*MESSAGES, message.to_dict(), *MESSAGES]
    assert official.create(model="toy/model", messages=history).choices[0].message.content == llm.answer
    assert "None" not in llm.tokenizer.decode(llm.calls[-1]["prompt"])


def test_stream_helper(official, llm):
    llm.answer = '{"city": "Ďáblice"}'
    seen = []
    with official.stream(model="toy/model", messages=MESSAGES, response_format=Place, logprobs=True) as stream:
        for event in stream:
            seen.append(event.type)
            if event.type == "content.done":
                assert event.parsed == Place(city="Ďáblice")
        whole = stream.get_final_completion()
    assert whole.choices[0].message.parsed == Place(city="Ďáblice") and whole.choices[0].finish_reason == "stop"
    assert seen.count("content.done") == seen.count("logprobs.content.done") == 1 and "content.delta" in seen


def test_a_cut_answer_is_not_parsed(official, llm):
    llm.answer = '{"city": "Ďáblice"}'
    with pytest.raises(openai.LengthFinishReasonError):
        official.parse(model="toy/model", messages=MESSAGES, response_format=Place, max_completion_tokens=3)


def test_parts_and_fields_that_clients_send_back(official, llm):
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "annotations": [], "audio": None}
    text = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    official.create(model="toy/model", messages=[*MESSAGES, said, {"role": "user", "content": [text]}])
    prompt = llm.tokenizer.decode(llm.calls[0]["prompt"])
    assert "No." in prompt and prompt.count("Hi") == 1
