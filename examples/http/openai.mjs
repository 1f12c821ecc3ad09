// A chat through the HTTP gateway with OpenAI's own client (npm install openai). The text appears as it is made.
// usage: node openai.mjs [QUESTION]     TANDEM_URL names another gateway than 127.0.0.1:11434, TANDEM_KEY an API key
import OpenAI from "openai";

const url = process.env.TANDEM_URL ?? "http://127.0.0.1:11434";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.TANDEM_KEY ?? "none" });
const model = (await client.models.list()).data[0].id;
const stream = await client.chat.completions.create({
        model,
        messages: [{ role: "user", content: process.argv[2] ?? "Tell me of a king" }],
        max_tokens: 100,
        stream: true,
        stream_options: { include_usage: true },
});

for await (const part of stream) {
        process.stdout.write(part.choices[0]?.delta.content ?? "");
        if (part.usage)
                console.log(`\n[${model}: ${part.usage.completion_tokens} tokens]`);
}
