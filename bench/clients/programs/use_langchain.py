"""LangChain over OpenAI's API."""

from __future__ import annotations

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from told import FEW, MODEL, ORDER, SCRIPTED, URL, VECTORS, ok, run, says

COMMON = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "max_retries": 0}
model = ChatOpenAI(**COMMON, max_tokens=200)


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return "rain in " + city


def texts() -> None:
    brief = ChatOpenAI(**COMMON, max_tokens=FEW)
    answer = brief.invoke("Good morning")
    says("invoke", answer.content, "You said: Good morning")
    ok("usage", answer.usage_metadata["input_tokens"] > 0)
    says("stream", "".join(part.content for part in brief.stream("Good morning")), "You said: Good morning")


def structured() -> None:
    person = model.with_structured_output(Person, method="json_schema").invoke("Who?")
    ok("structured output", isinstance(person, Person), person)


def forced() -> None:
    person = model.with_structured_output(Person, method="function_calling").invoke("Who?")
    ok("structured output by a forced call", isinstance(person, Person), person)


def tools() -> None:
    bound = model.bind_tools([get_weather])
    first = bound.invoke(ORDER)
    ok("tools", first.tool_calls[0]["args"] == {"city": "Brno"}, first)
    result = get_weather.invoke(first.tool_calls[0])
    says("tools: loop", bound.invoke([("user", ORDER), first, result]).content, "rain in Brno")


def responses() -> None:
    other = ChatOpenAI(**COMMON, max_tokens=FEW, use_responses_api=True)
    says("responses", other.invoke("Good morning").text, "You said: Good morning")


def embeddings() -> None:
    vectors = OpenAIEmbeddings(**COMMON | {"model": VECTORS}, check_embedding_ctx_length=False)
    ok("embeddings", len(vectors.embed_documents(["one", "two"])) == 2)


if __name__ == "__main__":
    parts = [texts, structured, *([forced, tools] if SCRIPTED else []), responses]
    run({part.__name__: part for part in [*parts, *([embeddings] if VECTORS else [])]})
