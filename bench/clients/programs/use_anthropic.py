"""The official client of Anthropic's API."""

from __future__ import annotations

from functools import partial

import anthropic
from told import FEW, MODEL, ORDER, SCRIPTED, URL, ok, run, says

WEATHER = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HELLO = [{"role": "user", "content": "Good morning"}]


def messages(client: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "max_tokens": FEW, "system": "Be brief."}
    answer = client.messages.create(messages=HELLO, **asked)
    says("message", answer.content[0].text, "You said: Good morning")
    with client.messages.stream(messages=HELLO, **asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    says("stream", text, "You said: Good morning")
    ok("stream: usage", final.usage.output_tokens > 0 and final.stop_reason in ("end_turn", "max_tokens"), final)
    counted = client.messages.count_tokens(model=MODEL, system="Be brief.", messages=HELLO)
    usage = answer.usage
    read = usage.cache_read_input_tokens
    ok("count_tokens", counted.input_tokens == usage.input_tokens + read, (counted, usage))


def tools(client: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER], "thinking": {"type": "adaptive"}}
    messages = [{"role": "user", "content": ORDER}]
    with client.messages.stream(messages=messages, **asked) as stream:
        first = stream.get_final_message()
    ok("tools", first.stop_reason == "tool_use" and first.content[-1].input == {"city": "Brno"}, first)
    ok("thinking", first.content[0].type == "thinking", first)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "rain"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    says("tools: loop", client.messages.create(messages=messages, **asked).content[0].text, "rain")


def errors(client: anthropic.Anthropic) -> None:
    try:
        client.messages.create(model="none", max_tokens=1, messages=HELLO)
    except anthropic.NotFoundError as error:
        ok("errors", error.body["error"]["type"] == "not_found_error", error.body)


def main() -> None:
    parts = [messages, *([tools] if SCRIPTED else []), errors]
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0) as client:
        run({part.__name__: partial(part, client) for part in parts})


if __name__ == "__main__":
    main()
