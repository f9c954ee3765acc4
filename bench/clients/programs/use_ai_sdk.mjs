// The AI SDK, over OpenAI's API and over Anthropic's.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { FEW, MODEL, ORDER, SCRIPTED, URL, VECTORS, ok, run, says } from "./told.mjs";

const compatible = createOpenAICompatible({
  name: "octavo",
  baseURL: `${URL}/v1`,
  apiKey: "none",
  supportsStructuredOutputs: true,
});
const models = {
  chat: compatible(MODEL),
  messages: createAnthropic({ baseURL: `${URL}/v1`, apiKey: "none" })(MODEL),
};
const common = { maxRetries: 0, maxOutputTokens: 200 };
const few = { ...common, maxOutputTokens: FEW };
const get_weather = tool({
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});

async function both(name) {
  const asked = { ...few, model: models[name], prompt: "Good morning" };
  says(`${name}: generateText`, (await generateText(asked)).text, "You said: Good morning");
  let text = "";
  for await (const part of streamText(asked).textStream) text += part;
  says(`${name}: streamText`, text, "You said: Good morning");
  if (!SCRIPTED) return;
  const steps = { ...asked, ...common, prompt: ORDER, tools: { get_weather }, stopWhen: stepCountIs(3) };
  says(`${name}: tools`, (await generateText(steps)).text, "rain in Brno");
}

async function object() {
  const schema = z.object({ name: z.string(), age: z.number() });
  const { object } = await generateObject({ ...common, model: models.chat, schema, prompt: "Who?" });
  ok("chat: generateObject", typeof object.name === "string" && typeof object.age === "number", object);
}

async function embeddings() {
  const model = compatible.textEmbeddingModel(VECTORS);
  ok("embedMany", (await embedMany({ model, values: ["one", "two"], maxRetries: 0 })).embeddings.length === 2);
}

await run({ chat: () => both("chat"), messages: () => both("messages"), object, ...(VECTORS ? { embeddings } : {}) });
