// Whole rounds of the official npm clients: a chat, a stream, a thought, a call with its result and answer, a schema.
// Run by tests/integration/test_http_clients.py, which says where the gateway is (TANDEM_URL) and what its model was
// written to say (TANDEM_WANT, JSON). Prints a line for each case; the exit status is that of the worst.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, Output, isStepCount, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { runCases } from "./run-cases.mjs";

const url = process.env.TANDEM_URL, want = JSON.parse(process.env.TANDEM_WANT);
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "not used", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "not used", maxRetries: 0 });
const ollama = new Ollama({ host: url });
const model = "scripted", question = "Hello there", result = "Sunny";
const messages = [{ role: "user", content: question }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"],
                     additionalProperties: false };
const person = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } },
                 required: ["name", "age"], additionalProperties: false };
const weather = { name: "weather", description: "The weather in a city", parameters };

async function collect(stream, of) {
        let all = "";

        for await (const part of stream)
                all += of(part) ?? "";
        return all;
}

function called(name, args) {
        assert.deepEqual([name, typeof args === "string" ? JSON.parse(args) : args], ["weather", want.arguments]);
}

const cases = {
        async openai_chat() {
                const ask = { model, messages }, deltas = [];
                const { message } = (await openai.chat.completions.create(ask)).choices[0];

                assert.deepEqual([message.content, message.reasoning_content], [want.text, want.thought]);
                for await (const part of await openai.chat.completions.create({ ...ask, stream: true }))
                        deltas.push(part.choices[0].delta);
                for (const [name, text] of [["content", want.text], ["reasoning_content", want.thought]])
                        assert.equal(deltas.map((d) => d[name] ?? "").join(""), text);
                const form = { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } };
                const got = await openai.chat.completions.parse({ ...ask, response_format: form });

                assert.deepEqual(got.choices[0].message.parsed, want.person);
        },
        async openai_tools() {
                const asked = [], call = (args) => (asked.push(args), result);
                const tools = [{ type: "function", function: { ...weather, parse: JSON.parse, function: call } }];

                for (const stream of [false, true]) {
                        const runner = openai.chat.completions.runTools({ model, messages, stream, tools });

                        assert.equal(await runner.finalContent(), want.last);
                }
                assert.deepEqual(asked, [want.arguments, want.arguments]);
        },
        async openai_responses() {
                const ask = { model, input: question }, whole = await openai.responses.create(ask);

                assert.equal(whole.output_text, want.text);
                assert.equal(whole.output.find((i) => i.type === "reasoning").content[0].text, want.thought);
                assert.equal(await collect(await openai.responses.create({ ...ask, stream: true }),
                                           (e) => e.type === "response.output_text.delta" ? e.delta : ""), want.text);
                const text = { format: { type: "json_schema", name: "person", strict: true, schema: person } };

                assert.deepEqual((await openai.responses.parse({ ...ask, text })).output_parsed, want.person);
        },
        async openai_responses_tools() {
                const ask = { model, tools: [{ type: "function", strict: true, ...weather }] };

                for (const stream of [false, true]) {
                        const first = stream ?
                                await openai.responses.stream({ ...ask, input: messages }).finalResponse() :
                                await openai.responses.create({ ...ask, input: messages });
                        const call = first.output.find((i) => i.type === "function_call");

                        called(call.name, call.arguments);
                        const input = [...messages, ...first.output,
                                       { type: "function_call_output", call_id: call.call_id, output: result }];

                        assert.equal((await openai.responses.create({ ...ask, input })).output_text, want.last);
                }
        },
        async anthropic() {
                const ask = { model, messages, max_tokens: 2048, thinking: { type: "enabled", budget_tokens: 1024 } };
                const said = (m) => m.content.map((b) => b[b.type]);

                assert.deepEqual(said(await anthropic.messages.create(ask)), [want.thought, want.text]);
                assert.deepEqual(said(await anthropic.messages.stream(ask).finalMessage()), [want.thought, want.text]);
                const got = await anthropic.messages.create({
                        ...ask, thinking: { type: "disabled" },
                        output_config: { format: { type: "json_schema", schema: person }, effort: "high" } });

                assert.deepEqual(JSON.parse(got.content[0].text), want.person);
        },
        async anthropic_tools() {
                const tools = [{ name: "weather", description: "The weather in a city", input_schema: parameters }];
                const ask = { model, max_tokens: 2048, tools };

                for (const stream of [false, true]) {
                        const first = stream ? await anthropic.messages.stream({ ...ask, messages }).finalMessage() :
                                               await anthropic.messages.create({ ...ask, messages });
                        const use = first.content.find((b) => b.type === "tool_use");

                        called(use.name, use.input);
                        const last = await anthropic.messages.create({
                                ...ask, messages: [...messages, { role: "assistant", content: first.content },
                                                   { role: "user", content: [{ type: "tool_result", content: result,
                                                                               tool_use_id: use.id }] }] });

                        assert.deepEqual([last.content[0].text, last.stop_reason], [want.last, "end_turn"]);
                }
        },
        async ollama() {
                const { message } = await ollama.chat({ model, messages });
                const parts = [];

                assert.deepEqual([message.content, message.thinking], [want.text, want.thought]);
                for await (const part of await ollama.chat({ model, messages, stream: true }))
                        parts.push(part.message);
                for (const [name, text] of [["content", want.text], ["thinking", want.thought]])
                        assert.equal(parts.map((p) => p[name] ?? "").join(""), text);
                const got = await ollama.chat({ model, messages, think: false, format: person });

                assert.deepEqual(JSON.parse(got.message.content), want.person);
                const tools = [{ type: "function", function: weather }];
                const first = (await ollama.chat({ model, messages, tools })).message;

                called(first.tool_calls[0].function.name, first.tool_calls[0].function.arguments);
                const round = [...messages, first, { role: "tool", tool_name: "weather", content: result }];

                assert.equal((await ollama.chat({ model, messages: round, tools })).message.content, want.last);
        },
};

const providers = {
        compatible: createOpenAICompatible({ name: "tandem", baseURL: `${url}/v1`,
                                             supportsStructuredOutputs: true })(model),
        chat: createOpenAI({ baseURL: `${url}/v1`, apiKey: "not used" }).chat(model),
        responses: createOpenAI({ baseURL: `${url}/v1`, apiKey: "not used" }).responses(model),
        anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: "not used" })(model),
};

for (const [name, provider] of Object.entries(providers))
        cases[`ai_${name}`] = async () => {
                const plain = { model: provider, prompt: question, maxRetries: 0, maxOutputTokens: 2048,
                                providerOptions: { openai: { store: false } } }; // no response is kept to refer to
                const thinking = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } };
                const ask = { ...plain, providerOptions: { ...plain.providerOptions, ...thinking } };
                const whole = await generateText(ask), asked = [];

                assert.equal(whole.text, want.text);
                if (name === "compatible" || name === "anthropic") // the others' packages drop it
                        assert.equal(whole.reasoningText, want.thought);
                assert.equal(await collect(streamText(ask).textStream, (part) => part), want.text);
                const { output } = await generateText({ ...plain,
                                                        output: Output.object({ schema: jsonSchema(person) }) });

                assert.deepEqual(output, want.person);
                const execute = async (args) => (asked.push(args), result);
                const round = await generateText({
                        ...plain, stopWhen: isStepCount(3),
                        tools: { weather: tool({ ...weather, inputSchema: jsonSchema(parameters), execute }) } });

                assert.deepEqual([round.text, asked], [want.last, [want.arguments]]);
        };

await runCases(cases, process.argv.slice(2));
