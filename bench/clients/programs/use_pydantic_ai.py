"""Pydantic AI, over OpenAI's API and over Anthropic's."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from told import MODEL, ORDER, SCRIPTED, URL, ok, says


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """Tells the weather."""
    return "rain in " + city


def main() -> None:
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    client = AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
    models = {
        "chat": OpenAIChatModel(MODEL, provider=provider),
        "messages": AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client)),
        "responses": OpenAIResponsesModel(MODEL, provider=provider),
    }
    settings = {"max_tokens": 200}
    for name, model in models.items():
        agent = Agent(model, model_settings=settings)
        says(f"{name}: run", agent.run_sync("Good morning").output, "You said: Good morning")
        if SCRIPTED:
            agent = Agent(model, model_settings=settings, tools=[get_weather])
            says(f"{name}: tools", agent.run_sync(ORDER).output, "rain in Brno")
    person = Agent(models["chat"], model_settings=settings, output_type=NativeOutput(Person)).run_sync("Who?").output
    ok("chat: native output", isinstance(person, Person), person)
    person = Agent(models["chat"], model_settings=settings, output_type=Person).run_sync("Who?").output
    ok("chat: output by a forced call", isinstance(person, Person), person)


if __name__ == "__main__":
    main()
