// The official client of OpenAI's API for node.
import OpenAI from "openai";
import { FEW, MODEL, ORDER, SCRIPTED, URL, VECTORS, ok, run, says } from "./told.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const hello = [{ role: "user", content: "Good morning" }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

async function texts() {
  const asked = { model: MODEL, messages: hello, max_tokens: FEW };
  says("chat", (await client.chat.completions.create(asked)).choices[0].message.content, "You said: Good morning");
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  says("stream", text, "You said: Good morning");
}

async function tools() {
  const runner = client.chat.completions.runTools({
    model: MODEL,
    max_tokens: 200,
    stream: true,
    messages: [{ role: "user", content: ORDER }],
    tools: [{ ...weather, function: { ...weather.function, parse: JSON.parse, function: ({ city }) => `rain in ${city}` } }],
  });
  says("tools: runner, streamed", await runner.finalContent(), "rain in Brno");
}

async function responses() {
  const asked = { model: MODEL, input: "Good morning", max_output_tokens: 200, temperature: 0 };
  says("responses", (await client.responses.create(asked)).output_text, "You said: Good morning");
  const kinds = [];
  for await (const event of await client.responses.create({ ...asked, stream: true })) kinds.push(event.type);
  ok("responses: stream", kinds.at(-1) === "response.completed", kinds);
}

async function embeddings() {
  const answer = await client.embeddings.create({ model: VECTORS, input: ["one", "two"] });
  ok("embeddings", answer.data.length === 2 && answer.data[0].embedding.length > 3);
}

await run({ texts, ...(SCRIPTED ? { tools } : {}), responses, ...(VECTORS ? { embeddings } : {}) });
