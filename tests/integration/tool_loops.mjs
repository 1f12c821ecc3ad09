// The tool loops of the official npm clients, against a gateway: node tool_loops.mjs BASE-URL MODEL NODE_MODULES CLIENT.
// Prints a line of JSON: the calls that were made, and the last answer's end.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [base, model, modules, client] = process.argv.slice(2);
const require = createRequire(modules + "/x.js");
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 8 }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const run = (name, args) => JSON.stringify({ name, city: args.city.length, t: -3 });
const result = { calls: [], ends: [] };
const note = (name, args) => (result.calls.push({ name, args }), run(name, args));

async function openai() {
  const OpenAI = (await load("openai")).default;
  const c = new OpenAI({ baseURL: base + "/v1", apiKey: "none" });
  const tools = [{ type: "function", function: { name: "get_weather", description: "Weather.", parameters: schema } }];
  const messages = [{ role: "user", content: "Weather in Oslo?" }];
  for (const stream of [false, true]) {
    const choice = { type: "function", function: { name: "get_weather" } };
    const ask = { model, messages, tools, tool_choice: choice, parallel_tool_calls: false, max_tokens: 120, seed: 3 };
    const answer = stream ? await c.chat.completions.stream({ ...ask, stream: true }).finalChatCompletion()
                          : await c.chat.completions.create(ask);
    const m = answer.choices[0].message;
    result.ends.push(answer.choices[0].finish_reason);
    messages.push({ role: "assistant", content: m.content, tool_calls: m.tool_calls });
    for (const call of m.tool_calls)
      messages.push({ role: "tool", tool_call_id: call.id,
                      content: note(call.function.name, JSON.parse(call.function.arguments)) });
  }
  const last = await c.chat.completions.create({ model, messages, tools, tool_choice: "none", max_tokens: 8 });
  result.last = last.choices[0].message;
}

async function anthropic() {
  const Anthropic = (await load("@anthropic-ai/sdk")).default;
  const c = new Anthropic({ baseURL: base, apiKey: "none" });
  const tools = [{ name: "get_weather", description: "Weather.", input_schema: schema }];
  const messages = [{ role: "user", content: "Weather in Oslo?" }];
  for (const stream of [false, true]) {
    const ask = { model, messages, tools, max_tokens: 120, tool_choice: { type: "any", disable_parallel_tool_use: true } };
    const answer = stream ? await c.messages.stream(ask).finalMessage() : await c.messages.create(ask);
    result.ends.push(answer.stop_reason);
    messages.push({ role: "assistant", content: answer.content });
    messages.push({ role: "user", content: answer.content.filter((b) => b.type === "tool_use").map((b) => (
      { type: "tool_result", tool_use_id: b.id, content: note(b.name, b.input) })) });
  }
  const last = await c.messages.create({ model, messages, tools, tool_choice: { type: "none" }, max_tokens: 8 });
  result.last = last.content[0];
}

// Ollama's API has no tool_choice: whether this model calls is up to it.
async function ollama() {
  const { Ollama } = await load("ollama");
  const c = new Ollama({ host: base });
  const tools = [{ type: "function", function: { name: "get_weather", description: "Weather.", parameters: schema } }];
  const messages = [{ role: "user", content: "Weather in Oslo?" },
    { role: "assistant", content: "", tool_calls: [{ function: { name: "get_weather", arguments: { city: "Oslo", days: 2 } } }] },
    { role: "tool", tool_name: "get_weather", content: run("get_weather", { city: "Oslo" }) }];
  const answer = await c.chat({ model, messages, tools, options: { num_predict: 20, seed: 1 } });
  result.ends.push(answer.done_reason);
  for await (const part of await c.chat({ model, messages, tools, stream: true, options: { num_predict: 20 } }))
    if (part.done)
      result.ends.push(part.done_reason);
  result.last = answer.message;
}

async function ai() {
  const { generateText, tool, jsonSchema, stepCountIs } = await load("ai");
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({ name: "tandem", baseURL: base + "/v1" });
  const answer = await generateText({
    model: provider(model), prompt: "Weather in Oslo?", toolChoice: "required", maxOutputTokens: 200,
    stopWhen: stepCountIs(2), seed: 5,
    tools: { get_weather: tool({ description: "Weather.", inputSchema: jsonSchema(schema),
                                 execute: async (args) => note("get_weather", args) }) },
  });
  result.ends = answer.steps.map((s) => s.finishReason);
  result.last = answer.text;
}

await { openai, anthropic, ollama, ai }[client]();
console.log(JSON.stringify(result));
