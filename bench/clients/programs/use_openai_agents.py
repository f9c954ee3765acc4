"""OpenAI's Agents SDK, over chat completions and over responses."""

from __future__ import annotations

import asyncio

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI
from told import MODEL, ORDER, SCRIPTED, URL, run, says

KINDS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


@function_tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return "rain in " + city


async def both(name: str) -> None:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
        model = KINDS[name](model=MODEL, openai_client=client)
        settings = ModelSettings(max_tokens=200, temperature=0)
        agent = Agent(name="a", instructions="Be brief.", model=model, model_settings=settings)
        says(f"{name}: run", (await Runner.run(agent, "Good morning")).final_output, "You said: Good morning")
        if not SCRIPTED:
            return
        agent = Agent(name="a", model=model, model_settings=settings, tools=[get_weather])
        says(f"{name}: tools", (await Runner.run(agent, ORDER)).final_output, "rain in Brno")
        streamed = Runner.run_streamed(agent, ORDER)
        async for _ in streamed.stream_events():
            pass
        says(f"{name}: tools, streamed", streamed.final_output, "rain in Brno")


if __name__ == "__main__":
    set_tracing_disabled(True)
    run({name: lambda name=name: asyncio.run(both(name)) for name in KINDS})
