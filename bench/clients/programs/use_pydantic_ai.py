"""Pydantic AI, over OpenAI's API and over Anthropic's."""

from __future__ import annotations

from functools import partial

from anthropic import AsyncAnthropic
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from told import FEW, MODEL, ORDER, SCRIPTED, URL, ok, run, says

PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
CLIENT = AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
MODELS = {
    "chat": OpenAIChatModel(MODEL, provider=PROVIDER),
    "messages": AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=CLIENT)),
    "responses": OpenAIResponsesModel(MODEL, provider=PROVIDER),
}
SETTINGS = {"max_tokens": 200}


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Tells the weather."""
    return "rain in " + city


def texts(name: str) -> None:
    agent = Agent(MODELS[name], model_settings={"max_tokens": FEW})
    says(f"{name}: run", agent.run_sync("Good morning").output, "You said: Good morning")
    if SCRIPTED:
        agent = Agent(MODELS[name], model_settings=SETTINGS, tools=[get_weather])
        says(f"{name}: tools", agent.run_sync(ORDER).output, "rain in Brno")


def native() -> None:
    agent = Agent(MODELS["chat"], model_settings=SETTINGS, output_type=NativeOutput(Person))
    ok("chat: native output", isinstance(agent.run_sync("Who?").output, Person))


def forced() -> None:
    agent = Agent(MODELS["chat"], model_settings=SETTINGS, output_type=Person)
    ok("chat: output by a forced call", isinstance(agent.run_sync("Who?").output, Person))


if __name__ == "__main__":
    run({name: partial(texts, name) for name in MODELS} | {"native": native} | ({"forced": forced} if SCRIPTED else {}))
