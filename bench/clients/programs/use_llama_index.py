"""LlamaIndex over OpenAI's API."""

from __future__ import annotations

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from told import FEW, MODEL, ORDER, SCRIPTED, URL, ok, run, says

COMMON = {
    "model": MODEL,
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "max_tokens": 200 if SCRIPTED else FEW,
    "context_window": 4096,
}
COMMON |= {"max_retries": 0}
model = OpenAILike(**COMMON, is_chat_model=True, is_function_calling_model=True)


def get_weather(city: str) -> str:
    """Tells the weather."""
    return "rain in " + city


def texts() -> None:
    hello = [ChatMessage(role="user", content="Good morning")]
    says("chat", model.chat(hello).message.content, "You said: Good morning")
    says("stream", list(model.stream_chat(hello))[-1].message.content, "You said: Good morning")
    plain = OpenAILike(**COMMON, is_chat_model=False)
    says("complete", plain.complete("Good morning").text, "You said: ")


def tools() -> None:
    weather = FunctionTool.from_defaults(get_weather)
    (call,) = model.get_tool_calls_from_response(model.chat_with_tools([weather], ORDER))
    ok("tools", call.tool_kwargs == {"city": "Brno"}, call)
    says("tools: predict_and_call", model.predict_and_call([weather], ORDER).response, "rain in Brno")


if __name__ == "__main__":
    run({part.__name__: part for part in [texts, *([tools] if SCRIPTED else [])]})
