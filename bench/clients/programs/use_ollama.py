"""The official client of Ollama's API."""

from __future__ import annotations

import json

import ollama
from told import FEW, MODEL, ORDER, SCRIPTED, URL, VECTORS, ok, run, says

client = ollama.Client(host=URL)
HELLO = [{"role": "user", "content": "Good morning"}]


def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where
    """
    return "rain in " + city


def texts() -> None:
    brief = {"num_predict": FEW}
    says("chat", client.chat(MODEL, HELLO, options=brief).message.content, "You said: Good morning")
    text = "".join(part.message.content for part in client.chat(MODEL, HELLO, stream=True, options=brief))
    says("stream", text, "You said: Good morning")
    says("generate", client.generate(MODEL, "Good morning", options=brief).response, "You said: Good morning")
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    schema["additionalProperties"] = False
    shaped = client.chat(MODEL, HELLO, format=schema, options={"num_predict": 200}).message.content
    ok("format", isinstance(json.loads(shaped)["age"], int), shaped)


def tools() -> None:
    messages = [{"role": "user", "content": ORDER}]
    first = client.chat(MODEL, messages, tools=[get_weather]).message
    (call,) = first.tool_calls
    ok("tools", dict(call.function.arguments) == {"city": "Brno"} and first.thinking, first)
    messages += [first, {"role": "tool", "tool_name": "get_weather", "content": get_weather("Brno")}]
    says("tools: loop", client.chat(MODEL, messages, tools=[get_weather]).message.content, "rain in Brno")


def lists() -> None:
    ok("list, ps", client.list().models[0].model and client.ps().models[0].context_length > 0)
    ok("show", "completion" in client.show(MODEL).capabilities)


def embeddings() -> None:
    ok("embed", len(client.embed(VECTORS, ["one", "two"]).embeddings) == 2)


def errors() -> None:
    try:
        client.chat("none", HELLO)
    except ollama.ResponseError as error:
        ok("errors", error.status_code == 404, error)


if __name__ == "__main__":
    parts = [texts, *([tools] if SCRIPTED else []), lists, *([embeddings] if VECTORS else []), errors]
    run({part.__name__: part for part in parts})
