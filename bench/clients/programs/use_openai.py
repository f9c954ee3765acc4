"""The official client of OpenAI's API."""

from __future__ import annotations

import json
from functools import partial

import openai
from pydantic import BaseModel
from told import FEW, MODEL, ORDER, SCRIPTED, URL, VECTORS, ok, run, says

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Person(BaseModel):
    name: str
    age: int


def chat(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "Good morning"}]}
    asked["temperature"] = 0  # helpers take an answer that was cut for a failure
    answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, seed=1)
    says("chat", answer.choices[0].message.content, "You said: Good morning")
    ok("log-probabilities", len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    says("stream", text, "You said: Good morning")
    ok("stream: usage", final.usage.prompt_tokens > 0 and final.choices[0].message.content == text)
    parsed = client.chat.completions.parse(**asked, response_format=Person)
    ok("parse", isinstance(parsed.choices[0].message.parsed, Person), parsed)
    plain = client.completions.create(model=MODEL, prompt="One two", max_tokens=5, echo=True, logprobs=1)
    ok("completions: echo, logprobs", plain.choices[0].text.startswith("One two"), plain)


def tools(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": ORDER}]
    asked = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER]}
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    ok("tools", json.loads(call.function.arguments) == {"city": "Brno"}, message)
    messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    says("tools: loop", client.chat.completions.create(messages=messages, **asked).choices[0].message.content, "rain")


def forced(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER], "tool_choice": "required"}
    answer = client.chat.completions.create(messages=[{"role": "user", "content": "Go"}], **asked)
    (call,) = answer.choices[0].message.tool_calls
    ok("tools: required", isinstance(json.loads(call.function.arguments)["city"], str), call)


def responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Good morning", max_output_tokens=FEW)
    whole = {"max_output_tokens": 200, "temperature": 0}
    says("responses", first.output_text, "You said: Good morning")
    with client.responses.stream(model=MODEL, input="Good evening", **whole) as stream:
        kinds = [event.type for event in stream]
        says("responses: stream", stream.get_final_response().output_text, "You said: Good evening")
    ok("responses: order", kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds)
    more = client.responses.create(model=MODEL, input="And?", previous_response_id=first.id, max_output_tokens=FEW)
    ok("responses: previous", more.usage.input_tokens > first.usage.input_tokens, more)


def embeddings(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=VECTORS, input=["one", "two"])
    ok("embeddings", len(answer.data) == 2 and len(answer.data[0].embedding) > 3)


def models(client: openai.OpenAI) -> None:
    ok("models", client.models.list().data[0].id)


def main() -> None:
    parts = [models, chat, *([tools, forced] if SCRIPTED else []), responses, *([embeddings] if VECTORS else [])]
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
        run({part.__name__: partial(part, client) for part in parts})


if __name__ == "__main__":
    main()
