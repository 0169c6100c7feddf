/** What npm's clients can do with a server; run by clients.py in the folder of the clients.
 *
 * Standard input is {address, model, embedder}; standard output has one JSON object for each client and feature.
 */

import { readFileSync } from "node:fs";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const CODES = ["unsupported_parameter", "unsupported_model", "invalid_value", "unknown_parameter", "model_not_found"];
const { address, model, embedder } = JSON.parse(readFileSync(0, "utf8"));
const prompt = "What is 48 times 7?";
const messages = [{ role: "user", content: prompt }];
const expression = { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] };
const city = {
  type: "object",
  properties: { city: { type: "string", maxLength: 8 } },
  required: ["city"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "place", schema: city } };

async function check(client, features) {
  for (const [feature, run] of Object.entries(features)) {
    let result, message = "";
    try {
      result = (await run()) ? "works" : "FAILS";
    } catch (error) {
      message = `${error} ${error.responseBody ?? ""} ${JSON.stringify(error.error ?? {})}`.replace(/\s+/g, " ");
      result = CODES.some((code) => message.includes(code)) ? "refused" : "FAILS";
      message = message.slice(0, 300);
    }
    console.log(JSON.stringify({ client, feature, result, message }));
  }
}

const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", maxRetries: 0 });

function ask(more = {}) {
  return client.chat.completions.create({ model, messages, ...more });
}

function named(name, parameters) {
  return { tools: [{ type: "function", function: { name, parameters } }] };
}

await check("openai (npm)", {
  models: async () => (await client.models.list()).data.length,
  chat: async () => (await ask()).choices[0].message.content,
  stream: async () => {
    let text = "";
    for await (const chunk of await ask({ stream: true })) text += chunk.choices[0]?.delta.content ?? "";
    return text;
  },
  n: async () => (await ask({ n: 2 })).choices.length === 2,
  prompts: async () => (await client.completions.create({ model, prompt: ["A", "B"] })).choices.length === 2,
  calculator: async () => (await ask(named("calculator", expression))).choices[0].message.tool_calls?.length,
  "other tool": async () => (await ask(named("weather", city))).choices[0].message.content,
  "chosen tool": async () =>
    (await ask({ ...named("weather", city), tool_choice: "required" })).choices[0].message.tool_calls?.length,
  "JSON schema": async () => "city" in JSON.parse((await ask({ response_format: format })).choices[0].message.content),
  responses: async () => (await client.responses.create({ model, input: prompt })).output_text,
  embeddings: async () => (await client.embeddings.create({ model: embedder, input: ["a", "b"] })).data.length === 2,
});

const provider = createOpenAICompatible({
  name: "chatmill",
  baseURL: `${address}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const vercel = { model: provider(model), prompt, maxRetries: 0 };

function tools(name, schema) {
  return { [name]: tool({ description: name, inputSchema: jsonSchema(schema), execute: async () => "336" }) };
}

await check("Vercel's ai", {
  chat: async () => (await generateText(vercel)).text,
  stream: async () => {
    let text = "";
    for await (const delta of streamText(vercel).textStream) text += delta;
    return text;
  },
  calculator: async () =>
    (await generateText({ ...vercel, tools: tools("calculator", expression), stopWhen: stepCountIs(3) })).text.includes(
      "336",
    ),
  "other tool": async () => (await generateText({ ...vercel, tools: tools("weather", city) })).text,
  "chosen tool": async () =>
    (await generateText({ ...vercel, tools: tools("weather", city), toolChoice: "required" })).toolCalls.length,
  "JSON schema": async () => "city" in (await generateObject({ ...vercel, schema: jsonSchema(city) })).object,
  embeddings: async () =>
    (await embedMany({ model: provider.textEmbeddingModel(embedder), values: ["a", "b"], maxRetries: 0 })).embeddings
      .length === 2,
});
