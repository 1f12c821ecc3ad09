"""tandem-http: what each API's requests are answered with. The text is the one that `tandem generate` prints for the
same prompt, sampling and seed, alone and in company."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

HI = [{"role": "user", "content": "Tell me of a king"}]
GREEDY = {"model": "tale", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}


def by_hand(d, seed=7, n=40, temp=1.0, *more, prompt=PROMPT):
    """What the command makes of it, with OpenAI's defaults."""
    done = d.cli_json("generate", "-m", "tale", "-n", str(n), "--temp", str(temp), "--top-k", "0", "--top-p", "0",
                      "--seed",
                      str(seed), "--json", *more, prompt)
    return "".join(e["text"] for e in done[:-1]), done[-1]


def text_of(events):
    """Of a stream of completions or chat, by choice."""
    out = {}
    for _, e in events:
        for c in e["choices"] if isinstance(e, dict) else []:
            out[c["index"]] = out.get(c["index"], "") + (c["text"] if "text" in c else c["delta"].get("content", ""))
    return out


@test
def lists():
    with Daemon(models=[TALE, SPROUT], placement=None) as d, Gateway(d) as g:
        equal(g.get("/health"), {"status": "ok"}, "health")
        models = g.get("/v1/models")
        equal([m["created"] for m in models["data"]][:2], [int(os.stat(p).st_mtime) for p in (TALE, SPROUT)],
              "when the files were changed")
        # Behind those that were named come others of the tree's folder.
        equal((models["object"], [m["id"] for m in models["data"]][:2]), ("list", ["tale", "sprout"]), "models")
        equal(g.get("/v1/models/tale")["object"], "model", "one model")
        equal(g.get("/v1/models/nope", 404)["error"]["code"], "model_not_found", "unknown model")
        check(re.fullmatch(r"\d+\.\d+\.\d+", g.get("/api/version")["version"]), "a bare version")
        tags = g.get("/api/tags")["models"]
        equal([m["name"] for m in tags][:2], ["tale:latest", "sprout:latest"], "tags")
        check(all(re.fullmatch("[0-9a-f]{64}", m["digest"]) for m in tags), "Ollama's program cuts it to 12", tags)
        check(tags[0]["digest"] != tags[1]["digest"], "identities differ", tags)
        equal(g.get("/api/ps"), {"models": []}, "none is loaded yet")
        g.post("/v1/completions", GREEDY)
        loaded = g.get("/api/ps")["models"]
        equal([(m["model"], m["digest"]) for m in loaded], [("tale:latest", tags[0]["digest"])], "the loaded one")
        on_gpu = d.workers()["gpu"]["device"] != "host"
        equal((loaded[0]["size"] > 0, loaded[0]["size_vram"]), (True, loaded[0]["size"] if on_gpu else 0), "on the GPU")
        show = g.post("/api/show", {"model": "tale"})
        equal((show["model_info"]["gemma3.context_length"], show["capabilities"]), (4096, ["completion", "tools"]),
              "show")
        equal(g.post("/api/show", {"name": "nope"}, 404)["error"][:17], "the model 'nope' ", "show of none")
        equal(g.request("GET", "/")[2], b"Tandem is running\n", "root")
        status, headers, data = g.request("HEAD", "/v1/models")
        equal((status, data), (200, b""), "HEAD")
        check(int(headers["content-length"]) > 50, "the length that GET would have", headers)
        equal(g.get("/nope", 404)["error"]["code"], "not_found", "unknown path")
        status, headers, _ = g.request("GET", "/v1/completions")
        equal((status, headers["allow"]), (405, "POST, OPTIONS"), "wrong method")
        for path in ("/v1/embeddings", "/api/embed"):
            check("names no pooling" in str(g.post(path, {"model": "tale", "input": "x"}, 400)), path)
        for path in ("/api/pull", "/api/push", "/api/create", "/api/copy"):
            g.post(path, {"model": "x"}, 403)


@test
def share_of_a_gpu():
    """Ollama's clients tell by it how much of a model is on the GPU: nothing where the GPU worker runs on the CPU."""
    models = {"models": [{"name": "tale", "path": "/tale.gguf", "state": "loaded", "weights_bytes": 7000}]}
    for device, size in (("vulkan", 7000), ("host", 0), ("", 0)):
        workers = [{"name": "npu", "device": "xrt"}, {"name": "gpu", "device": device}]
        with FakeDaemon([], said={"models": models, "status": {"workers": workers}}) as fake, Gateway(fake) as g:
            equal([(m["size"], m["size_vram"]) for m in g.get("/api/ps")["models"]], [(7000, size)], device)


@test
def same_as_the_command():
    """Alone, streamed and whole, over every API; then 64 at once, each with a seed of its own."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        want, done = by_hand(d)
        body = {"model": "tale", "prompt": PROMPT, "max_tokens": 40, "seed": 7}
        whole = g.post("/v1/completions", body)
        equal(whole["choices"][0]["text"], want, "whole")
        equal(whole["usage"]["completion_tokens"], done["generated_tokens"], "tokens")
        equal(whole["usage"]["prompt_tokens"], done["prompt_tokens"], "tokens of the prompt")
        equal(text_of(g.events("/v1/completions", body))[0], want, "streamed")
        ids = g.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
        equal(ids, json.loads(d.cli("tokenize", "-m", "tale", PROMPT, check_exit=0).stdout), "ids")
        equal(g.post("/v1/completions", dict(body, prompt=ids))["choices"][0]["text"], want, "from ids")
        raw = {"model": "tale", "prompt": PROMPT, "raw": True,
               "options": {"num_predict": 40, "seed": 7, "temperature": 1, "top_k": 0, "top_p": 1, "repeat_penalty": 1}}
        equal("".join(e["response"] for e in g.lines("/api/generate", raw)), want, "Ollama's")
        said, _ = by_hand(d, 7, 40, 1.0, "--chat", prompt="Tell me of a king")
        chat = {"model": "tale", "messages": HI, "max_tokens": 40, "seed": 7}
        equal(g.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"], said, "chat")
        equal(text_of(g.events("/v1/chat/completions", chat))[0], said, "chat, streamed")
        equal(g.post("/v1/messages", chat)["content"][0]["text"], said, "Anthropic's")
        events = g.events("/v1/messages", chat)
        equal("".join(e["delta"]["text"] for t, e in events if t == "content_block_delta"), said,
              "Anthropic's, streamed")
        response = {"model": "tale", "input": HI[0]["content"], "max_output_tokens": 40, "seed": 7}
        equal(g.post("/v1/responses", response)["output"][0]["content"][0]["text"], said, "responses")
        events = g.events("/v1/responses", response)
        equal("".join(e["delta"] for t, e in events if t == "response.output_text.delta"), said, "responses, streamed")

        n = times(64, 64, 8)
        alone = [by_hand(d, seed)[0] for seed in range(n)]
        together = parallel([lambda s=s: text_of(g.events("/v1/completions", dict(body, seed=s)))[0] for s in range(n)])
        for seed in range(n):
            equal(together[seed], alone[seed], f"seed {seed} in company")


@test
def chat():
    with Daemon(placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "messages": HI, "max_tokens": 12, "temperature": 0, "logprobs": True}
        whole = g.post("/v1/chat/completions", body)
        choice = whole["choices"][0]
        equal((whole["object"], choice["finish_reason"], choice["message"]["role"]),
              ("chat.completion", "length", "assistant"), "shape")
        entries = choice["logprobs"]["content"]
        equal("".join(e["token"] for e in entries), choice["message"]["content"], "tokens of the log-probabilities")
        check(all(e["logprob"] <= 0 and bytes(e["bytes"]).decode() == e["token"] for e in entries), "entries", entries)
        by_job = d.generate(chat=[("user", HI[0]["content"])], n=12, temp=0)
        check(max(abs(a["logprob"] - b) for a, b in zip(entries, by_job.logprobs)) < 1e-6,
              "the daemon's log-probabilities")
        events = g.events("/v1/chat/completions", dict(body, stream_options={"include_usage": True}))
        equal(events[-1], (None, "[DONE]"), "the last event")
        equal(events[0][1]["choices"][0]["delta"]["role"], "assistant", "the first event")
        equal((events[-2][1]["choices"], events[-2][1]["usage"]["completion_tokens"]), ([], 12), "usage")
        check(all(e["usage"] is None for _, e in events[:-2]), "usage is null before the end")
        equal(events[-3][1]["choices"][0]["finish_reason"], "length", "finish")
        streamed = [c for _, e in events[1:-3] for c in e["choices"][0]["logprobs"]["content"]]
        equal([e["logprob"] for e in streamed], [e["logprob"] for e in entries], "log-probabilities in a stream")
        # parts, roles, the two limits
        parts = [{"role": "developer", "content": "Be brief."},
                 {"role": "user", "content": [{"type": "text", "text": "Tell me "}, {"type": "text",
                                                                                     "text": "of a king"}]}]
        one = g.post("/v1/chat/completions", dict(body, messages=parts, max_tokens=3, max_completion_tokens=5))
        other = g.post("/v1/chat/completions", dict(body, max_tokens=5, messages=[
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of a king"}]))
        equal(one["choices"][0]["message"], other["choices"][0]["message"], "parts are joined, developer is system")
        equal(one["usage"]["completion_tokens"], 5, "max_completion_tokens goes first")
        for messages, why in (([], "missing or empty"),
                              ([{"role": "tool", "content": "x"}], "tool"), ("x", "array"), ([1], "object"),
                              ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                               "image_url"),
                              ([{"role": "user", "content": 5}], "content"),
                              ([{"role": "user", "content": "x", "nonsense": 1}], "nonsense")):
            error = g.post("/v1/chat/completions", dict(body, messages=messages), 400)["error"]
            check(why in error["message"], f"refusal of {messages}", error)


@test
def completions():
    with Daemon(placement=None) as d, Gateway(d) as g:
        one = g.post("/v1/completions", GREEDY)["choices"][0]["text"]
        body = dict(GREEDY, prompt=[PROMPT, "The wolf"], n=2, temperature=1, seed=3)
        whole = g.post("/v1/completions", body)
        equal([c["index"] for c in whole["choices"]], [0, 1, 2, 3], "two prompts, two choices each")
        for i, (prompt, seed) in enumerate([(PROMPT, 3), (PROMPT, 4), ("The wolf", 3), ("The wolf", 4)]):
            text = g.post("/v1/completions", dict(GREEDY, prompt=prompt, seed=seed,
                                                  temperature=1))["choices"][0]["text"]
            equal(whole["choices"][i]["text"], text, f"choice {i} is seed {seed}")
        equal(text_of(g.events("/v1/completions", body)), {c["index"]: c["text"] for c in whole["choices"]}, "streamed")
        equal(len(g.post("/v1/completions", {"model": "tale", "prompt": PROMPT})["choices"]), 1, "defaults")
        # stop: the text ends before it
        word = one.split()[3]
        got = g.post("/v1/completions", dict(GREEDY, stop=word))["choices"][0]
        equal((got["text"], got["finish_reason"]), (one[:one.index(word)], "stop"), "stop")
        got = text_of(g.events("/v1/completions", dict(GREEDY, stop=["nonsense", word])))[0]
        equal(got, one[:one.index(word)], "stop, streamed")
        entry = g.post("/v1/completions", dict(GREEDY, logprobs=0))["choices"][0]
        columns = entry["logprobs"]
        equal(columns["top_logprobs"], None, "no alternatives are asked for")
        equal("".join(columns["tokens"]), entry["text"], "tokens")
        equal([entry["text"][o:o + len(t)] for t, o in zip(columns["tokens"], columns["text_offset"])],
              columns["tokens"],
              "offsets")
        two = g.post("/v1/completions", dict(GREEDY, logprobs=2))["choices"][0]["logprobs"]
        equal([len(top) for top in two["top_logprobs"]], [2] * len(two["tokens"]), "two alternatives each")
        equal([max(top.values()) for top in two["top_logprobs"]], two["token_logprobs"], "greedy takes the likeliest")
        ids = d.tokenize(PROMPT)
        for prompt in ("", [], [[]], [""], {}, 5, [1.5], [-1], [4294967296], [1 << 40], ["x", 5], ids[:2] + ["x"],
                       ["x"] * 17):
            error = g.post("/v1/completions", dict(GREEDY, prompt=prompt), 400)["error"]
            equal(error["param"], "prompt", f"refusal of {prompt}")
        check("vocabulary" in g.post("/v1/completions", dict(GREEDY, prompt=[4294967295]), 400)["error"]["message"],
              "no id")
        for stop in ("", [""], [1], ["x"] * 17, "x" * 257, {"a": 1}):
            equal(g.post("/v1/completions", dict(GREEDY, stop=stop), 400)["error"]["param"], "stop", f"stop {stop}")


@test
def penalties_and_biases():
    """The gateway's parameters are the options of the command: the same texts."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        first = d.tokenize(d.cli("generate", "--raw", "--temp", "0", "-n", "3", PROMPT, check_exit=0).stdout)[-1]
        flags = ("--frequency-penalty", "0.7", "--presence-penalty", "-0.4", "--logit-bias", f"{first}:-100,300:2.5")
        want, _ = by_hand(d, 7, 40, 1.0, *flags)
        plain, _ = by_hand(d, 7, 40, 1.0)
        check(want != plain, "they change something", want)
        both = {"frequency_penalty": 0.7, "presence_penalty": -0.4}
        bias = {"logit_bias": {str(first): -100, "300": 2.5}}
        body = {"model": "tale", "prompt": PROMPT, "max_tokens": 40, "seed": 7}
        equal(g.post("/v1/completions", dict(body, **both, **bias))["choices"][0]["text"], want, "completions")
        equal(text_of(g.events("/v1/completions", dict(body, **both, **bias)))[0], want, "completions, streamed")
        said, _ = by_hand(d, 7, 40, 1.0, "--chat", *flags, prompt="Tell me of a king")
        chat = {"model": "tale", "messages": HI, "max_tokens": 40, "seed": 7}
        equal(g.post("/v1/chat/completions", dict(chat, **both, **bias))["choices"][0]["message"]["content"], said,
              "chat")
        options = {"num_predict": 40, "seed": 7, "temperature": 1, "top_k": 0, "top_p": 1, "repeat_penalty": 1}
        raw = {"model": "tale", "prompt": PROMPT, "raw": True, "options": dict(options, **both)}
        equal("".join(e["response"] for e in g.lines("/api/generate", raw)), by_hand(d, 7, 40, 1.0, *flags[:4])[0],
              "Ollama's")
        for bad in ({"x": 1}, {"5": "1"}, {"5": 101}, {"-5": 1}, {"": 1}, {str(i): 1 for i in range(513)},
                    {"99999999999": 1}, {"999999": 1}):
            error = g.post("/v1/completions", dict(body, logit_bias=bad), 400)["error"]
            check("bias" in error["message"], "the refusal names it", error)
        chat.update(logprobs=True, top_logprobs=2, temperature=0, max_tokens=6)
        for entry in g.post("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"]:
            top = entry["top_logprobs"]
            equal((len(top), top[0]["logprob"]), (2, entry["logprob"]), "greedy takes the likeliest")
            equal(bytes(top[0]["bytes"]).decode(), top[0]["token"], "bytes")
        equal(g.post("/v1/chat/completions", dict(chat, logprobs=False), 400)["error"]["param"], "top_logprobs",
              "alternatives without log-probabilities")


@test
def no_text():
    """An answer that ends before its first character has all its members, and a text that is empty."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        text = g.post("/v1/completions", dict(GREEDY, max_tokens=4))["choices"][0]["text"]
        said = g.post("/v1/chat/completions", {"model": "tale", "messages": HI, "max_tokens": 4, "temperature": 0})
        said = said["choices"][0]["message"]["content"]
        body = dict(GREEDY, stop=text[:1])
        choice = g.post("/v1/completions", body)["choices"][0]
        equal((choice["text"], choice["finish_reason"]), ("", "stop"), "completions")
        equal(text_of(g.events("/v1/completions", dict(body, stream=True)))[0], "", "completions, streamed")
        body = {"model": "tale", "messages": HI, "max_tokens": 4, "temperature": 0, "stop": said[:1]}
        answer = g.post("/v1/chat/completions", body)
        equal(len(answer["choices"]), 1, "choices")
        equal((answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]), ("", "stop"), "chat")
        # Here no character was ever there: the first token is the end of the turn.
        end = {"logit_bias": {str(d.tokenize("<end_of_turn>", special=True, no_bos=True)[0]): 100}}
        for path, asked in (("/v1/chat/completions", {"messages": HI}), ("/v1/completions", {"prompt": PROMPT})):
            choices = g.post(path, dict(asked, model="tale", max_tokens=4, **end))["choices"]
            equal((len(choices), choices[0]["finish_reason"]), (1, "stop"), f"{path}: the end at once")
            equal(choices[0].get("text", choices[0].get("message", {}).get("content")), "", f"{path}: no text")
        body = {"model": "tale", "messages": HI, "max_tokens": 4, "temperature": 0, "stop_sequences": [said[:1]]}
        answer = g.post("/v1/messages", body)
        equal((answer["stop_reason"], answer["role"]), ("stop_sequence", "assistant"), "Anthropic's")
        check(all(block["text"] == "" for block in answer["content"]), "Anthropic's content", answer)
        options = {"num_predict": 4, "temperature": 0, "repeat_penalty": 1, "stop": [said[:1]]}
        answer = g.post("/api/chat", {"model": "tale", "messages": HI, "stream": False, "options": options})
        equal((answer["message"]["content"], answer["done"]), ("", True), "Ollama's chat")
        options["stop"] = [text[:1]]
        answer = g.post("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "stream": False,
                                          "options": options})
        equal((answer["response"], answer["done"]), ("", True), "Ollama's generate")


@test
def cached_tokens():
    with Daemon(placement=None) as d, Gateway(d) as g:
        prompt = " ".join(["Once there was a king who had three sons."] * 20)
        first = g.post("/v1/completions", dict(GREEDY, prompt=prompt))["usage"]
        again = g.post("/v1/completions", dict(GREEDY, prompt=prompt))["usage"]
        equal(first["prompt_tokens_details"]["cached_tokens"], 0, "nothing is known at first")
        check(again["prompt_tokens_details"]["cached_tokens"] >= 64, "the prompt is known", again)
        usage = g.post("/v1/messages", {"model": "tale", "max_tokens": 4,
                                        "messages": [{"role": "user", "content": prompt}]})["usage"]
        usage = g.post("/v1/messages", {"model": "tale", "max_tokens": 4,
                                        "messages": [{"role": "user", "content": prompt}]})["usage"]
        counted = g.post("/v1/messages/count_tokens", {"model": "tale", "messages": [{"role": "user",
                                                                                      "content": prompt}]})
        check(usage["cache_read_input_tokens"] >= 64, "read from the cache", usage)
        equal(usage["input_tokens"] + usage["cache_read_input_tokens"], counted["input_tokens"], "both make the prompt")
        text = g.request("GET", "/metrics")[2].decode()
        cached = int(float(re.search(r"^vllm:gpu_prefix_cache_hits_total (\S+)", text, re.M)[1]))
        equal(cached, d.status().get("cached_tokens", 0), "the daemon's count")


@test
def ollama():
    with Daemon(placement=None) as d, Gateway(d) as g:
        want, _ = by_hand(d, 5, 12, 0)
        options = {"num_predict": 12, "temperature": 0, "repeat_penalty": 1}
        lines = g.lines("/api/generate", {"model": "tale:latest", "prompt": PROMPT, "raw": True, "options": options})
        equal("".join(e["response"] for e in lines), want, "generate")
        last = lines[-1]
        equal((last["done"], last["done_reason"], last["eval_count"], last["prompt_eval_count"]), (True, "length", 12,
                                                                                                   5),
              "the last line")
        check(all(last[k] >= 0 for k in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")),
              last)
        check(not any(e["done"] for e in lines[:-1]), "only the last is done")
        whole = g.post("/api/chat", {"model": "tale", "messages": HI, "stream": False, "options": options})
        parts = g.lines("/api/chat", {"model": "tale", "messages": HI, "options": options})
        equal("".join(e["message"]["content"] for e in parts), whole["message"]["content"], "chat")
        system = g.post("/api/generate", {"model": "tale", "prompt": "x", "system": "y", "stream": False,
                                          "options": options})
        chat = g.post("/api/chat", {"model": "tale", "stream": False, "options": options, "messages": [
            {"role": "system", "content": "y"}, {"role": "user", "content": "x"}]})
        equal(system["response"], chat["message"]["content"], "generate applies the template")
        error = g.post("/api/generate", {"model": "tale", "prompt": "x", "raw": True, "system": "y"}, 400)
        check("'system'" in error["error"], "a raw prompt has no system message", error)
        # num_ctx: prompt and answer together
        out = g.post("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "stream": False,
                                       "options": dict(options, num_ctx=9)})
        equal((out["eval_count"], out["done_reason"]), (4, "length"), "num_ctx ends the answer")
        check(want.startswith(out["response"]), "with the same text", out)
        error = g.post("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "options": {"num_ctx": 5}},
                       400)
        check("num_ctx" in error["error"], "a prompt that does not fit", error)
        # load and unload
        wait_for(lambda: not d.jobs(), "the refused job is over")
        equal(g.post("/api/generate", {"model": "tale", "keep_alive": 0})["done_reason"], "unload", "unload")
        equal(g.get("/api/ps")["models"], [], "it is out")
        equal(g.post("/api/chat", {"model": "tale", "keep_alive": "5m"})["done_reason"], "load", "load")
        equal(len(g.get("/api/ps")["models"]), 1, "it is in")
        for keep in ("x", "5", "5x", "", "1h-5m", [], {}):
            g.post("/api/chat", {"model": "tale", "keep_alive": keep}, 400)
        for keep in ("1h30m", "-1s", "0", -1, 300, 1.5, "500ms"):
            g.post("/api/chat", {"model": "tale", "messages": HI, "stream": False, "options": options,
                                 "keep_alive": keep})
        # The last one said half a second, which the daemon counts as one; without it the model stays five minutes.
        wait_for(lambda: not g.get("/api/ps")["models"], "a model leaves as its last request says", 20)
        error = g.post("/api/chat", {"model": "nope", "messages": HI, "stream": False}, 404)["error"]
        equal(error[:16], "the model 'nope'", "unknown")
        g.post("/api/chat", {"model": "../tale"}, 404)


@test
def anthropic():
    with Daemon(placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "max_tokens": 24, "messages": HI, "temperature": 0}
        whole = g.post("/v1/messages", body)
        text = whole["content"][0]["text"]
        equal((whole["type"], whole["role"], whole["stop_reason"], whole["stop_sequence"]),
              ("message", "assistant", "max_tokens", None), "shape")
        events = g.events("/v1/messages", body)
        check(all(t == e["type"] for t, e in events), "event and type agree", events)
        order = [t for t, _ in events if t not in ("ping", "content_block_delta")]
        equal(order, ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"],
              "order")
        equal(events[-2][1]["usage"]["output_tokens"], 24, "tokens")
        word = text[20:41]  # of several tokens, and not from a token's beginning
        got = g.post("/v1/messages", dict(body, stop_sequences=["nonsense", word]))
        equal((got["stop_reason"], got["stop_sequence"]), ("stop_sequence", word), "which stop text it was")
        equal(got["content"][0]["text"], text[:text.index(word)], "the text before it")
        got = g.post("/v1/messages", dict(body, stop_sequences=[word + "nonsense"]))
        equal((got["stop_reason"], got["content"][0]["text"]), ("max_tokens", text), "what was held back comes")
        events = g.events("/v1/messages", dict(body, stop_sequences=[word]))
        equal("".join(e["delta"]["text"] for t, e in events if t == "content_block_delta"), text[:text.index(word)],
              "stream")
        equal(events[-2][1]["delta"], {"stop_reason": "stop_sequence", "stop_sequence": word}, "delta")
        blocks = dict(body, system=[{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}},
                                    {"type": "text", "text": "B"}])
        equal(g.post("/v1/messages", blocks)["content"], g.post("/v1/messages", dict(body, system="A\n\nB"))["content"],
              "blocks of a system text")
        status, headers, data = g.request("POST", "/v1/messages", dict(body, model="nope"))
        error = json.loads(data)
        equal((status, error["error"]["type"], error["request_id"]), (404, "not_found_error", headers["request-id"]),
              "unknown model")
        g.post("/v1/messages", {k: v for k, v in body.items() if k != "max_tokens"}, 400)
        wait_for(lambda: not d.jobs(), "jobs that were ended at a stop text are over")


@test
def responses():
    with Daemon(placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
                "instructions": "Be brief.", "max_output_tokens": 8, "temperature": 0, "metadata": {"a": "b"}}
        whole = g.post("/v1/responses", body)
        equal((whole["object"], whole["status"], whole["incomplete_details"], whole["metadata"]),
              ("response", "incomplete", {"reason": "max_output_tokens"}, {"a": "b"}), "shape")
        events = g.events("/v1/responses", body)
        equal([e["sequence_number"] for _, e in events], list(range(len(events))), "numbers")
        order = [t for t, _ in events if t != "response.output_text.delta"]
        equal(order, ["response." + t for t in ("created", "in_progress", "output_item.added", "content_part.added",
                                                "output_text.done", "content_part.done", "output_item.done",
                                                "incomplete")], "order")
        last = events[-1][1]["response"]
        equal(last["output"][0]["content"], whole["output"][0]["content"], "text")
        equal(last["usage"]["output_tokens"], 8, "usage")
        for bad in ({"input": [{"type": "item_reference", "id": "x"}]}, {"input": 5},
                    {"previous_response_id": "resp_1"}, {"text": {"format": {"type": "yaml"}}}):
            g.post("/v1/responses", dict(body, **bad), 400)


@test
def guesses():
    """speculation, draft and draft_max of each API reach the daemon, and change no text."""
    want = {"speculation": "SPECULATION_DRAFT", "draft": "sprout", "draft_max": 5}
    ask = {"speculation": "draft", "draft": "sprout:latest", "draft_max": 5}
    chat = {"model": "tale", "messages": HI, "max_tokens": 8}
    places = [("/v1/chat/completions", dict(chat, **ask)), ("/v1/completions", dict(GREEDY, **ask)),
              ("/v1/responses", dict({"model": "tale", "input": "x"}, **ask)), ("/v1/messages", dict(chat, **ask)),
              ("/api/chat", {"model": "tale", "messages": HI, "stream": False, "options": ask}),
              ("/api/generate", {"model": "tale", "prompt": "x", "stream": False, "options": ask})]
    with FakeDaemon([{"text": b"Hm"}], drafted=7, accepted=4) as fake, Gateway(fake) as g:
        for path, body in places:
            g.post(path, body)
            equal({k: fake.asked[-1].get(k) for k in want}, want, path)
        g.post("/v1/completions", GREEDY)
        equal([fake.asked[-1].get(k, 0) for k in want], [0, 0, 0], "none of them by default")
        for path in ("/v1/completions", "/v1/chat/completions"):
            details = g.post(path, dict(places)[path])["usage"]["completion_tokens_details"]
            equal((details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]), (4, 3), path)
        # How many there are depends on the time, so an answer that nobody asked them of is without.
        equal(g.post("/v1/completions", GREEDY)["usage"]["completion_tokens_details"], {"reasoning_tokens": 0}, "usage")
    with Daemon(models=[TALE, SPROUT], placement=None, env={"TANDEM_GUESSES": "all"}) as d, Gateway(d) as g:
        def text(want=200, **more):
            return g.post("/v1/completions", dict(GREEDY, **more), want)
        off = text(speculation="off")
        check("accepted_prediction_tokens" not in off["usage"]["completion_tokens_details"], "no guesses", off)
        for more in ({"draft": "tale"}, {"draft": "sprout", "draft_max": 3}, {"speculation": "lookup"}, {}):
            equal(text(**more)["choices"], off["choices"], str(more))
        own = text(draft="tale", max_tokens=60)["usage"]["completion_tokens_details"]
        check(own["accepted_prediction_tokens"] > 0, "the model's own guesses are right", own)
        equal(own["rejected_prediction_tokens"], 0, "all of them")
        for more, status, code, name in (({"speculation": "yes"}, 400, "invalid_value", "speculation"),
                                         ({"draft_max": 17}, 400, "invalid_value", "draft_max"),
                                         ({"draft": "/etc/passwd"}, 404, "model_not_found", "draft"),
                                         ({"draft": "nope"}, 404, "model_not_found", "draft")):
            error = text(status, **more)["error"]
            equal((error["code"], error["param"]), (code, name), str(more))
        error = g.post("/api/chat", {"model": "tale", "messages": HI, "stream": False, "options": {"draft": "../x"}},
                       404)["error"]
        check("'options.draft'" in error, "by its name", error)


@test
def thoughts():
    """What a model thinks before it answers or calls a tool. No model of the tests does by itself."""
    tokens = [{"text": b"", "thinking": "Hm, ä".encode()}, {"text": b"", "thinking": b" king."}, {"text": b"Yes"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with FakeDaemon(tokens) as fake, Gateway(fake) as g:
        body = {"model": "tale", "messages": HI, "tools": tools}
        message = g.post("/v1/chat/completions", body)["choices"][0]["message"]
        equal((message["reasoning_content"], message["content"]), ("Hm, ä king.", "Yes"), "OpenAI's")
        deltas = [e["choices"][0]["delta"] for _, e in g.events("/v1/chat/completions", body) if isinstance(e, dict)]
        equal(["".join(x.get(k) or "" for x in deltas) for k in ("reasoning_content", "content")],
              ["Hm, ä king.", "Yes"], "OpenAI's stream")
        message = g.post("/api/chat", dict(body, stream=False))["message"]
        equal((message["thinking"], message["content"]), ("Hm, ä king.", "Yes"), "Ollama's")
        lines = [e["message"] for e in g.lines("/api/chat", body)]
        equal(["".join(m.get(k) or "" for m in lines) for k in ("thinking", "content")], ["Hm, ä king.", "Yes"],
              "Ollama's stream")
        for stream in (False, True):
            hidden = g.lines("/api/chat", dict(body, think=False, stream=stream)) if stream else [
                g.post("/api/chat", dict(body, think=False, stream=stream))]
            check(not any("thinking" in e["message"] for e in hidden), "not where they are not wanted", hidden)
        answer = g.post("/v1/messages", dict(body, max_tokens=9, tools=[{"name": "f", "input_schema": {}}]))
        equal(answer["content"], [{"type": "text", "text": "Yes"}], "Anthropic's: nobody asked for them")


@test
def errors():
    with Daemon(placement=None, hang_ms=STANDING_MS) as d:
        with open(os.path.join(d.dir, "one.conf"), "w") as f:
            f.write("[daemon]\nmax-jobs = 1\nmax-jobs-per-user = 1\n")
        with Gateway(d) as g:
            for model in ("nope", "/etc/passwd", "./tale.gguf", TALE, "tale.gguf", "..", "tale\n", "ta\u00e9le"):
                error = g.post("/v1/chat/completions", {"model": model, "messages": HI}, 404)["error"]
                equal((error["code"], error["param"]), ("model_not_found", "model"), f"model {model}")
                check(TREE not in error["message"] or model == TALE, "no path of this machine", error)
            for stream in (False, True):
                long = dict(GREEDY, prompt="king " * 5000, stream=stream)
                equal(g.post("/v1/completions", long, 400)["error"]["code"], "context_length_exceeded", "too long")
            d.args = ["--config", os.path.join(d.dir, "one.conf")]
            equal(d.stop(), None, "the daemon leaves")
            status, headers, data = g.request("POST", "/v1/completions", GREEDY)
            equal((status, headers["x-should-retry"], int(headers["retry-after"]) > 0), (503, "true", True),
                  "no daemon")
            equal(g.request("GET", "/health")[0], 503, "health without a daemon")
            check("tandem_up 0" in g.request("GET", "/metrics")[2].decode(), "metrics without a daemon")
            d.start()
            equal(g.request("GET", "/health")[0], 200, "health with a new daemon")
            body = json.dumps(dict(GREEDY, max_tokens=4000, stream=True)).encode()
            d.generate(n=1)
            with d.standing(), g.connect() as s:  # so that it cannot end
                s.sendall(head("POST", "/v1/completions", f"Content-Length: {len(body)}") + body)
                wait_for(lambda: len(d.jobs()) == 1, "a job runs")
                status, headers, data = g.request("POST", "/v1/completions", GREEDY)
                equal((status, json.loads(data)["error"]["code"]), (429, "rate_limit_exceeded"), "busy")
                equal((headers["retry-after"], headers["retry-after-ms"]), ("1", "1000"), "when to try again")
                status, _, data = g.request("POST", "/v1/messages", {"model": "tale", "max_tokens": 5, "messages": HI})
                equal((status, json.loads(data)["error"]["type"]), (429, "rate_limit_error"), "busy, Anthropic's")
            wait_for(lambda: not d.jobs(), "the job is gone with its client")
            # a daemon that dies in the midst of a stream: an event says so
            with d.standing(), g.connect() as s:
                s.sendall(head("POST", "/v1/completions", f"Content-Length: {len(body)}", "Connection: close") + body)
                check(s.recv(100).startswith(b"HTTP/1.1 200"), "it streams")
                d.kill()
                rest = read_all(s)
            check(b'data: {"error":{' in rest and b"daemon_lost" in rest and b"[DONE]" not in rest, "the end",
                  rest[-400:])
            check(rest.endswith(b"0\r\n\r\n"), "the answer is complete HTTP", rest[-20:])


@test
def hang_up_while_the_prompt_is_read():
    """Also before the first token the job ends with its client; one that only waits in a queue, too."""
    with Daemon(placement=None, hang_ms=STANDING_MS) as d, Gateway(d) as g:
        d.call("load", {"model": {"name": "tale"}})
        d.wait_ready()
        took = []

        def hang_ups():
            text = g.request("GET", "/metrics")[2].decode()
            return int(re.search(r"^tandem_http_hang_ups_total (\d+)", text, re.M)[1])
        for api, body in (("/v1/completions", {"prompt": [str(i) + "king " * 3500 for i in range(16)], "n": 4}),
                          ("/v1/completions", {"prompt": [str(i) + "wolf " * 3500 for i in range(16)], "n": 4,
                                               "stream": True})):
            body = json.dumps(dict(body, model="tale", max_tokens=16)).encode()
            with d.standing(), g.connect() as s:  # so that no prompt is read to its end
                s.sendall(head("POST", api, f"Content-Length: {len(body)}") + body)
                jobs = wait_for(lambda: len(d.jobs()) == 64 and d.jobs(), "64 jobs")
                watch = Stopwatch()
                s.close()  # and the workers stand until the gateway has seen it, however late that is
                wait_for(lambda: hang_ups() == len(took) + 1, "the hang-up is seen")
            check(all(j.get("generated_tokens", 0) == 0 for j in jobs), "none has a token yet", jobs[0])
            wait_for(lambda: not d.jobs(), "the jobs are gone")
            took.append(watch.seconds())
        check(min(took) < 2 * SLOW, "at once", took)
        equal(hang_ups(), 2, "hang-ups counted")
        equal(d.status().get("jobs_done", 0), 0, "no job ran to its end")


@test
def slow_reader():
    """A client that does not read has its jobs paused; others go on; when it reads, everything comes. How much it takes
    until they pause is some 20,000 tokens, so that part is the full run's."""
    n, most = times((4, 500), (16, 3000), (4, 200))
    with Daemon(placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "prompt": PROMPT, "n": n, "max_tokens": most, "seed": 1, "stream": True,
                "temperature": 1.5}
        data = json.dumps(body).encode()
        with g.connect(rcvbuf=16384) as s:
            s.sendall(head("POST", "/v1/completions", f"Content-Length: {len(data)}") + data)

            def generated():
                return sum(j.get("generated_tokens", 0) for j in d.jobs())

            def stands():
                before = generated()
                g.post("/v1/completions", GREEDY)  # takes steps: a job that does not pause has more by then
                time.sleep(1.0 * min(SLOW, 3))
                return before > 100 and generated() == before
            if n == 16:
                wait_for(stands, "the jobs pause", 120)
                check(d.jobs(), "they are still there")
            paused = generated()
            check(g.memory_kb() < 64 * 1024 * (8 if SANITIZER else 1), "the gateway keeps little", g.memory_kb())
            equal(len(g.post("/v1/completions", GREEDY)["choices"]), 1, "others are served")
            if n == 16:
                equal(generated(), paused, "and it still waits")
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            text = b""
            while b"[DONE]" not in text[-100:]:
                piece = s.recv(1 << 20)
                check(piece, "the stream goes on to its end", text[-300:])
                text += piece
        events = parse_events(re.sub(r"\r\n[0-9A-Fa-f]+\r\n", "", text.decode().split("\r\n\r\n", 1)[1].split("\r\n",
                                                                                                              1)[1]))
        got = text_of(events)
        equal(set(got), set(range(n)), "all choices")
        for i in (0, n - 1):
            want = g.post("/v1/completions", dict(body, n=1, seed=1 + i, stream=False))["choices"][0]["text"]
            equal(got[i], want, f"choice {i}, though it was paused")


@test
def a_worker_is_killed():
    """In the midst of a stream: it pauses and goes on with the same text."""
    with Daemon(hang_ms=STANDING_MS) as d, Gateway(d) as g:
        d.wait_ready()
        body = {"model": "tale", "prompt": PROMPT, "max_tokens": 300, "seed": 11, "stream": True}
        want = text_of(g.events("/v1/completions", body))[0]

        def start():
            result = []  # a new one each time: an answer that was over too soon may be read after the next has begun
            thread = threading.Thread(target=lambda: result.append(text_of(g.events("/v1/completions", body))[0]))
            thread.start()
            return thread, result

        def streams(made):
            return any(j.get("generated_tokens", 0) > 0 for j in d.jobs())

        with d.begun(start, streams, "it streams") as (thread, result):
            d.signal_worker("gpu")
        thread.join()
        equal(result, [want], "the same text")
        check(d.status().get("recoveries", 0) > 0, "the worker had been lost")


def asked_of_a_silent_daemon():
    """The status of /health where the daemon does not answer, which takes ten seconds: in a list, later."""
    status = []

    def ask():
        with FakeDaemon([]) as fake, Gateway(fake) as g:
            status.append(g.request("GET", "/health")[0])
    threading.Thread(target=ask).start()
    return status


@test
def signs_of_life():
    """While nothing is generated, a stream says once a second that the server is there, in each API's own way; Ollama's
    says nothing. Both workers stand still here."""
    with Daemon(placement=None, hang_ms=STANDING_MS) as d, Gateway(d) as g:
        d.wait_ready()
        health = asked_of_a_silent_daemon()
        for path, body, sign in (("/v1/completions", {"prompt": PROMPT}, b": wait\n\n"),
                                 ("/v1/responses", {"input": PROMPT}, b": wait\n\n"),
                                 ("/v1/messages", {"messages": HI, "max_tokens": 20}, b"event: ping\n"),
                                 ("/api/generate", {"prompt": PROMPT}, None)):
            body = json.dumps(dict(body, model="tale", stream=True)).encode()
            with contextlib.ExitStack() as still, g.connect() as s:
                still.enter_context(d.standing())
                data, begin = b"", time.monotonic()
                s.sendall(head("POST", path, f"Content-Length: {len(body)}", "Connection: close") + body)
                s.settimeout(0.2)

                def said():
                    """For 2.5 s at least, and until there are two signs: they may be late on a busy machine, but never
                    more often than they are due."""
                    nonlocal data
                    with contextlib.suppress(socket.timeout):
                        data += s.recv(65536)
                    check(data.count(sign or b"\0") <= time.monotonic() - begin + 1.1, f"{path}: signs of life", data)
                    return time.monotonic() - begin > 2.5 and \
                        (not sign or data.count(sign) >= 2) and b"\r\n\r\n" in data
                wait_for(said, f"{path}: signs of life", 6, 0.01)
                check(data.startswith(b"HTTP/1.1 200 "), f"{path}: the head comes at once", data[:100])
                check(b"delta" not in data and b'"choices"' not in data, f"{path}: no text yet", data)
                if not sign:
                    equal(data.split(b"\r\n\r\n", 1)[1], b"", f"{path}: nothing")
                still.close()
                s.settimeout(PATIENCE)
                data = read_all(s)
                check(data.endswith(b"0\r\n\r\n"), f"{path}: it goes on to its end", data[-100:])
        equal(wait_for(lambda: health, "an answer of the other gateway", 20), [503], "health without an answer")


@test
def activated():
    """With a service manager's socket: it is answered on, also by the next gateway when one has died; what came in
    between waits. The daemon's other clients notice nothing."""
    with Daemon(placement=None) as d:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]

        def start():
            with open(os.path.join(d.dir, "activated.log"), "ab") as log:
                return subprocess.Popen(
                    ["sh", "-c", f'exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh",
                     os.path.join(BIN, "tandem-http"), "--socket", d.socket], env=d.environment(),
                    pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def ask(s):
            s.settimeout(PATIENCE)
            s.sendall(head("GET", "/health", "Connection: close"))
            equal(statuses(read_all(s)), [200], "an answer")
        p = start()
        other = d.start_job(n=3000)
        try:
            ask(socket.create_connection(("127.0.0.1", port)))
            p.kill()
            p.wait()
            waiting = socket.create_connection(("127.0.0.1", port))
            p = start()
            ask(waiting)
            ask(socket.create_connection(("127.0.0.1", port)))
            r = other.wait()
            equal((len(r.ids), r.recoveries), (3000, 0), "another client's job")
        finally:
            p.terminate()
            equal(exit_of(p), 0, "it leaves")
            listener.close()


@test
def metrics():
    with Daemon(placement=None) as d, Gateway(d) as g:
        g.post("/v1/completions", GREEDY)
        g.get("/nope", 404)
        status, headers, data = g.request("GET", "/metrics")
        equal((status, headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8"), "head")
        values, kinds = {}, {}
        for line in data.decode().splitlines():
            if line.startswith("# TYPE "):
                kinds[line.split()[2]] = line.split()[3]
                continue
            if line.startswith("#"):
                continue
            m = re.fullmatch(r'([a-z_:]+)(\{(?:[a-z]+="[^"]*",?)+\})? (-?[\d.e+-]+)', line)
            check(m, "a line of Prometheus' text", line)
            check(re.sub(r"_(bucket|sum|count)$", "", m[1]) in kinds or m[1] in kinds, "with a type", line)
            values[m[1] + (m[2] or "")] = float(m[3])
        s = d.status()
        for name, field in (("tandem_generated_tokens_total", "tokens_generated"), ("tandem_prompt_tokens_total",
                                                                                    "prompt_tokens"),
                            ("tandem_jobs_done_total", "jobs_done"), ("vllm:num_requests_running", "jobs_running"),
                            ("vllm:num_requests_waiting", "jobs_queued")):
            equal(values[name], s.get(field, 0), f"{name} and status")
        equal(values['tandem_http_time_to_first_token_seconds_count'], 1, "first tokens")
        equal(values['tandem_http_time_between_tokens_seconds_count'], 23, "between tokens")
        equal(values['tandem_http_requests_total{class="4xx"}'], 1, "answers")
        equal(values['tandem_worker_ready{worker="npu"}'], 1, "workers")
        check(0 <= values["vllm:kv_cache_usage_perc"] <= 1, "a share", values["vllm:kv_cache_usage_perc"])


main()
