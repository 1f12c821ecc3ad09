// Drives tandem-http with the official clients, as applications do. Run by tests/integration/test_http_clients.py, which
// says where the gateway is (TANDEM_URL) and what the command makes of the same requests (TANDEM_WANT, JSON). Prints a
// line for each case; the exit status is that of the worst.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { runCases } from "./run-cases.mjs";

const url = process.env.TANDEM_URL, want = JSON.parse(process.env.TANDEM_WANT);
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "not used", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "not used", maxRetries: 0 });
const ollama = new Ollama({ host: url });
const compatible = createOpenAICompatible({ name: "tandem", baseURL: `${url}/v1`, includeUsage: true });
const chat = { model: "tale", messages: [{ role: "user", content: want.question }], max_tokens: 40, seed: 7 };
const thinks = { model: want.thinker, messages: [{ role: "user", content: want.question }], max_tokens: 40, seed: 7 };
const prompt = { model: "tale", prompt: want.prompt, max_tokens: 40, seed: 7 };

async function text(stream, of) {
        let all = "";

        for await (const part of stream)
                all += of(part) ?? "";
        return all;
}

const cases = {
        async openai_models() {
                const list = await openai.models.list();

                assert.ok(list.data.some((m) => m.id === "tale"));
                assert.equal((await openai.models.retrieve("tale")).object, "model");
                await assert.rejects(openai.models.retrieve("no-such"), OpenAI.NotFoundError);
                await assert.rejects(openai.chat.completions.create({ ...chat, model: "no-such" }),
                                     (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
        },
        async openai_chat() {
                const whole = await openai.chat.completions.create(chat);

                assert.equal(whole.choices[0].message.content, want.chat);
                assert.equal(whole.choices[0].finish_reason, "length");
                assert.equal(whole.usage.completion_tokens, 40);
                assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + 40);
                assert.equal(await text(await openai.chat.completions.create({ ...chat, stream: true }),
                                        (c) => c.choices[0]?.delta.content), want.chat);
        },
        async openai_stream_helper() {
                const runner = openai.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
                const final = await runner.finalChatCompletion();

                assert.equal(final.choices[0].message.content, want.chat);
                assert.equal(final.usage.completion_tokens, 40);
        },
        async openai_choices_and_seeds() {
                const two = await openai.chat.completions.create({ ...chat, n: 2 });
                const next = await openai.chat.completions.create({ ...chat, seed: 8 });

                assert.deepEqual(two.choices.map((c) => c.message.content),
                                 [want.chat, next.choices[0].message.content]);
        },
        async openai_completions() {
                assert.equal((await openai.completions.create(prompt)).choices[0].text, want.text);
                assert.equal(await text(await openai.completions.create({ ...prompt, stream: true }),
                                        (c) => c.choices[0]?.text), want.text);
                const cut = want.text.slice(want.text.length / 2);
                const word = cut.split(" ")[1];
                const stopped = await openai.completions.create({ ...prompt, stop: word });

                assert.equal(stopped.choices[0].text, want.text.slice(0, want.text.indexOf(word)));
                assert.equal(stopped.choices[0].finish_reason, "stop");
        },
        async openai_penalties_and_biases() {
                const moved = { frequency_penalty: 0.7, presence_penalty: -0.4, logit_bias: want.bias };

                assert.notEqual(want.moved, want.text);
                assert.equal((await openai.completions.create({ ...prompt, ...moved })).choices[0].text, want.moved);
                await assert.rejects(openai.completions.create({ ...prompt, frequency_penalty: 3 }),
                                     (e) => e.status === 400 && e.param === "frequency_penalty");
                await assert.rejects(openai.completions.create({ ...prompt, logit_bias: { x: 1 } }),
                                     (e) => e.status === 400 && e.param === "logit_bias");
        },
        async openai_logprobs() {
                const got = await openai.chat.completions.create({ ...chat, temperature: 0, logprobs: true,
                                                                   top_logprobs: 3 });

                assert.equal(got.choices[0].logprobs.content.length, 40);
                for (const entry of got.choices[0].logprobs.content) {
                        assert.equal(entry.top_logprobs.length, 3);
                        assert.equal(entry.top_logprobs[0].logprob, entry.logprob);
                }
                assert.equal((await openai.completions.create({ ...prompt, logprobs: 2 })).choices[0].logprobs
                                     .top_logprobs.length, 40);
        },
        async openai_schema() {
                const schema = { type: "object", properties: { name: { type: "string", maxLength: 8 } },
                                 required: ["name"], additionalProperties: false };
                const got = await openai.chat.completions.create({
                        ...chat, max_tokens: 80,
                        response_format: { type: "json_schema", json_schema: { name: "it", strict: true, schema } } });

                assert.equal(typeof JSON.parse(got.choices[0].message.content).name, "string");
        },
        async openai_responses() {
                const request = { model: "tale", input: want.question, max_output_tokens: 40, seed: 7 };

                assert.equal((await openai.responses.create(request)).output_text, want.chat);
                assert.equal(await text(await openai.responses.create({ ...request, stream: true }),
                                        (e) => e.type === "response.output_text.delta" ? e.delta : ""), want.chat);
        },
        async openai_refusals() {
                for (const bad of [{ temperature: 3 }, { n: 0 }, { max_tokens: -2 }, { min_tokens: 1 }, { stop: [1] }])
                        await assert.rejects(openai.chat.completions.create({ ...chat, ...bad }),
                                             (e) => e instanceof OpenAI.BadRequestError &&
                                                     e.param === Object.keys(bad)[0]);
                await assert.rejects(openai.chat.completions.create({
                        ...chat, messages: [{ role: "user", content: "word ".repeat(20000) }] }),
                                     (e) => e.code === "context_length_exceeded");
        },
        async openai_aborts() {
                const stream = await openai.chat.completions.create({ ...chat, max_tokens: 4000, stream: true });
                let n = 0;

                for await (const part of stream)
                        if (part && ++n === 5)
                                break;
                assert.equal(n, 5);
                for (let i = 0; ; i++) { // the job is gone, and the gateway serves on
                        const { models } = await ollama.ps(), metrics = await (await fetch(`${url}/metrics`)).text();

                        assert.ok(models);
                        if (/^vllm:num_requests_running\S* 0$/m.test(metrics))
                                break;
                        assert.ok(i < 200, metrics);
                        await new Promise((done) => setTimeout(done, 50));
                }
        },
        async openai_64_at_once() {
                const seeds = Array.from({ length: 64 }, (_, i) => i);
                const ask = async (seed) => text(
                        await openai.completions.create({ ...prompt, seed, max_tokens: 12, stream: true }),
                        (c) => c.choices[0]?.text);
                const together = await Promise.all(seeds.map(ask));

                for (const seed of [0, 1, 31, 63])
                        assert.equal(await ask(seed), together[seed]);
                assert.ok(new Set(together).size > 32);
        },
        async ollama_client() {
                const options = { num_predict: 40, seed: 7, temperature: 1, top_k: 0, top_p: 1, repeat_penalty: 1 };
                const messages = chat.messages;

                assert.ok((await ollama.list()).models.some((m) => m.name.startsWith("tale")));
                assert.match((await ollama.version()).version, /^\d+\.\d+/);
                assert.ok((await ollama.show({ model: "tale" })).capabilities.includes("completion"));
                assert.equal((await ollama.chat({ model: "tale", messages, options })).message.content, want.chat);
                assert.equal(await text(await ollama.chat({ model: "tale", messages, options, stream: true }),
                                        (p) => p.message.content), want.chat);
                assert.equal(await text(await ollama.generate({ model: "tale", prompt: want.prompt, raw: true, options,
                                                                stream: true }), (p) => p.response), want.text);
                const moved = { ...options, frequency_penalty: 0.7, presence_penalty: -0.4 };

                assert.notEqual((await ollama.generate({ model: "tale", prompt: want.prompt, raw: true,
                                                         options: moved })).response, want.text);
                await assert.rejects(ollama.chat({ model: "no-such", messages }), (e) => e.status_code === 404);
        },
        async openai_thinks() {
                const request = { ...thinks, reasoning_effort: "high", reasoning_budget: 9 };
                const whole = await openai.chat.completions.create(request), { message } = whole.choices[0];
                const chunks = await openai.chat.completions.create({ ...request, stream: true });

                assert.ok(message.reasoning_content.length > 5 && message.content.length > 5);
                assert.equal(whole.usage.completion_tokens_details.reasoning_tokens, 10);
                assert.equal(await text(chunks, (c) => c.choices[0]?.delta.reasoning_content),
                             message.reasoning_content);
                await openai.chat.completions.create({ ...request, messages: [...thinks.messages, message,
                                                                              ...thinks.messages] });
                await assert.rejects(openai.chat.completions.create({ ...chat, reasoning_effort: "high" }),
                                     (e) => e.status === 400 && e.param === "reasoning_effort");
        },
        async openai_responses_think() {
                const request = { model: want.thinker, input: want.question, max_output_tokens: 20, seed: 7,
                                  reasoning: { effort: "high" } };
                const whole = await openai.responses.create(request);
                const streamed = await openai.responses.stream(request).finalResponse();

                assert.deepEqual(whole.output.map((i) => [i.type, i.content[0].type]),
                                 [["reasoning", "reasoning_text"]]);
                assert.equal(whole.usage.output_tokens_details.reasoning_tokens, 20);
                assert.equal(streamed.output[0].content[0].text, whole.output[0].content[0].text);
                await openai.responses.create({ ...request, input: [
                        { role: "user", content: "Hi" }, ...whole.output, { role: "assistant", content: "Yes" },
                        { role: "user", content: "Hi" }] });
        },
        async anthropic_thinks() {
                const request = { model: want.thinker, messages: thinks.messages, max_tokens: 40, seed: 7,
                                  thinking: { type: "enabled", budget_tokens: 9 } };
                const whole = await anthropic.messages.create(request);
                const streamed = await anthropic.messages.stream(request).finalMessage();
                const again = (content) => anthropic.messages.create({ ...request, messages: [
                        ...thinks.messages, { role: "assistant", content }, ...thinks.messages] });

                assert.deepEqual(whole.content.map((b) => b.type), ["thinking", "text"]);
                assert.deepEqual(streamed.content, whole.content);
                assert.equal((await again(whole.content)).type, "message");
                await assert.rejects(again([{ ...whole.content[0], thinking: "Another." }, whole.content[1]]),
                                     Anthropic.BadRequestError);
        },
        async ollama_thinks() {
                const request = { model: want.thinker, messages: thinks.messages, think: true,
                                  options: { num_predict: 20, seed: 7 } };
                const whole = await ollama.chat(request);

                assert.ok(whole.message.thinking.length > 5);
                assert.equal(await text(await ollama.chat({ ...request, stream: true }), (c) => c.message.thinking),
                             whole.message.thinking);
                await assert.rejects(ollama.chat({ ...request, model: "tale" }),
                                     (e) => /no form for thoughts/.test(e.message));
        },
        async anthropic_client() {
                const request = { model: "tale", max_tokens: 40, messages: chat.messages, temperature: 1 };
                const seeded = { ...request, seed: 7 };
                const whole = await anthropic.messages.create(seeded);

                assert.equal(whole.content[0].text, want.chat);
                assert.equal(whole.stop_reason, "max_tokens");
                assert.equal((await anthropic.messages.stream(seeded).finalMessage()).content[0].text, want.chat);
                const counted = await anthropic.messages.countTokens({ model: "tale", messages: chat.messages });

                assert.equal(counted.input_tokens, whole.usage.input_tokens);
                await assert.rejects(anthropic.messages.create({ ...request, model: "no-such" }),
                                     Anthropic.NotFoundError);
                await assert.rejects(anthropic.messages.create({ ...request, temperature: 2 }),
                                     Anthropic.BadRequestError);
        },
        async ai_sdk() {
                const request = { model: compatible("tale"), prompt: want.question, maxOutputTokens: 40, seed: 7,
                                  temperature: 1, maxRetries: 0 };
                const whole = await generateText(request), stream = streamText(request);

                assert.equal(whole.text, want.chat);
                assert.equal(await text(stream.textStream, (part) => part), want.chat);
                assert.equal((await stream.usage).outputTokens, 40);
                await assert.rejects(generateText({ ...request, model: compatible("no-such") }));
        },
};

await runCases(cases, process.argv.slice(2));
