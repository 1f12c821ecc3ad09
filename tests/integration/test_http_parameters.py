"""tandem-http: every row of every table of parameters, as `tandem-http --list-parameters` prints them."""
import base64
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from seeing import HOST, file_of, make_pair  # noqa: E402

HI = [{"role": "user", "content": "Tell me of a king"}]
GREEDY = {"model": "tale", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
# Numbers that ask for nothing, of what some servers have. None of these is honoured by every API here.
OFF = {"best_of": 1, "dry_multiplier": 0, "dynatemp_range": 0, "frequency_penalty": 0, "length_penalty": 1.0,
       "min_tokens": 0, "mirostat": 0, "n": 1, "n_probs": 0, "num_beams": 1, "presence_penalty": 0.0,
       "repeat_penalty": 1.0, "repetition_penalty": 1, "top_a": 0, "top_logprobs": 0, "typical_p": 1,
       "xtc_probability": 0}


def signature(text):
    """FNV-1a with 64 bits, from two beginnings: of the bytes, and of their complements."""
    parts = [0xcbf29ce484222325, 0x84222325cbf29ce4]
    for byte in text:
        parts = [(h ^ byte ^ flip) * 0x100000001b3 % 2**64 for h, flip in zip(parts, (0, 255))]
    return "tandem1-" + "".join(f"{h:016x}" for h in parts)


@test
def parameters():
    """Each row of each table: what is honoured has its type checked, what is harmless passes with anything, what would
    change the answer is refused by name unless it asks for nothing. What no table knows is refused inside of other
    members and ignored at the top, which the answer's head says, as of what is ignored by name."""
    tables, title = {}, None
    out = subprocess.run([os.path.join(BIN, "tandem-http"), "--list-parameters"], stdout=subprocess.PIPE,
                         text=True).stdout
    for line in out.splitlines():
        if line.startswith("### "):
            title = line[4:]
            tables[title] = []
        row = re.fullmatch(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|", line)
        if row:
            tables[title].append(row.groups())
    check(len(tables) == 46 and all(tables.values()), "found the tables", list(tables))
    neutral = {"false": False, "true": True, "0": 0, "1": 1, "empty": [], "text": {"type": "text"}, "none": "none",
               "auto": "auto", "disabled": "disabled", "medium": "medium",
               "summarized": "summarized"}
    chat = {"model": "tale", "messages": HI, "max_tokens": 1}
    ollama = {"model": "tale", "stream": False, "options": {"num_predict": 1}}
    say = {"role": "user", "content": "x"}
    embedding_model = make_model("a", "q8_0", arch="gemma-embedding", seed=1)
    vectors = os.path.basename(embedding_model)[:-len(".gguf")]
    reranker = make_model("rank", "f32", arch="bert", seed=1)
    ranks = {"model": os.path.basename(reranker)[:-len(".gguf")], "query": "x", "documents": ["y"]}
    classifier = make_model("classes", "f32", arch="bert", seed=1)
    classes = os.path.basename(classifier)[:-len(".gguf")]
    places = {  # title: path, a request that passes, where the parameter goes
        "POST /v1/chat/completions": ("/v1/chat/completions", chat, lambda b, p: b.update(p)),
        "POST /v1/completions": ("/v1/completions", dict(GREEDY, max_tokens=1), lambda b, p: b.update(p)),
        "A message of OpenAI's APIs": ("/v1/chat/completions", chat, lambda b, p: b.update(messages=[dict(say, **p)])),
        "POST /v1/responses": ("/v1/responses", {"model": "tale", "input": "x", "max_output_tokens": 1},
                               lambda b, p: b.update(p)),
        "POST /v1/messages": ("/v1/messages", chat, lambda b, p: b.update(p)),
        "A message of Anthropic's API": ("/v1/messages", chat, lambda b, p: b.update(messages=[dict(say, **p)])),
        "POST /v1/messages/count_tokens": ("/v1/messages/count_tokens", {"model": "tale", "messages": HI},
                                           lambda b, p: b.update(p)),
        "POST /api/chat": ("/api/chat", dict(ollama, messages=HI), lambda b, p: b.update(p)),
        "POST /api/generate": ("/api/generate", dict(ollama, prompt="x"), lambda b, p: b.update(p)),
        "Ollama's `options`": ("/api/generate", dict(ollama, prompt="x"),
                               lambda b, p: b.update(options=dict(b["options"], **p))),
        "A message of Ollama's API": ("/api/chat", dict(ollama, messages=HI),
                                      lambda b, p: b.update(messages=[dict(say, **p)])),
        "POST /api/show": ("/api/show", {"model": "tale"}, lambda b, p: b.update(p)),
        "POST /tokenize": ("/tokenize", {"model": "tale", "content": "x"}, lambda b, p: b.update(p)),
        "POST /v1/embeddings": ("/v1/embeddings", {"model": vectors, "input": "x"}, lambda b, p: b.update(p)),
        "POST /v1/rerank, POST /rerank": ("/v1/rerank", ranks, lambda b, p: b.update(p)),
        "POST /classify, POST /v1/classify": ("/classify", {"model": classes, "input": "x"}, lambda b, p: b.update(p)),
        "POST /predict": ("/predict", {"model": classes, "inputs": "x"}, lambda b, p: b.update(p)),
        "POST /api/embed, POST /api/embeddings": ("/api/embed", {"model": vectors, "input": "x"},
                                                  lambda b, p: b.update(p)),
    }
    tools_model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    called = dict(chat, model=os.path.basename(tools_model)[:-len(".gguf")])
    function = {"name": "f", "parameters": {"type": "object"}}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": "abcdefghi", "content": "x"}
    use = {"type": "tool_use", "id": "abcdefghi", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "abcdefghi", "content": "x"}
    thought = {"type": "thinking", "thinking": "x", "signature": signature(b"x")}
    reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}
    spoken = {"role": "assistant", "content": "x"}
    respond = {"model": called["model"], "input": "x", "max_output_tokens": 1}
    flat = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    item = {"type": "function_call", "call_id": "abcdefghi", "name": "f", "arguments": "{}"}
    said = {"type": "function_call_output", "call_id": "abcdefghi", "output": "x"}
    sees = dict(chat, model="see")
    data = base64.b64encode(file_of("tiny.png")).decode()
    url = "data:image/png;base64," + data
    source = {"type": "base64", "media_type": "image/png", "data": data}

    def shown(part, member="messages"):
        return {member: [{"role": "user", "content": [part]}]}
    nested = {
        "A document of POST /v1/rerank": ("/v1/rerank", ranks,
                                          lambda b, p: b.update(documents=[dict({"text": "y"}, **p)])),
        "A part image_url": ("/v1/chat/completions", sees, lambda b, p: b.update(shown(
            dict({"type": "image_url", "image_url": {"url": url}}, **p)))),
        "`image_url` of a part image_url": ("/v1/chat/completions", sees, lambda b, p: b.update(shown(
            {"type": "image_url", "image_url": dict({"url": url}, **p)}))),
        "A part input_image": ("/v1/responses", {"model": "see", "max_output_tokens": 1}, lambda b, p: b.update(shown(
            dict({"type": "input_image", "image_url": url}, **p), "input"))),
        "A block image": ("/v1/messages", sees, lambda b, p: b.update(shown(
            dict({"type": "image", "source": source}, **p)))),
        "`source` of a block image": ("/v1/messages", sees, lambda b, p: b.update(shown(
            {"type": "image", "source": dict(source, **p)}))),
        "`stream_options` of OpenAI's APIs": ("/v1/completions", dict(GREEDY, max_tokens=1),
                                              lambda b, p: b.update(stream_options=p)),
        "`cache_control` of Anthropic's API": ("/v1/messages", chat, lambda b, p: b.update(cache_control=p)),
        "`metadata` of Anthropic's API": ("/v1/messages", chat, lambda b, p: b.update(metadata=p)),
        "A part or block of text": ("/v1/chat/completions", chat, lambda b, p: b.update(
            messages=[{"role": "user", "content": [dict({"type": "text", "text": "x"}, **p)]}])),
        "A tool of OpenAI's and Ollama's APIs": ("/v1/chat/completions", called, lambda b, p: b.update(
            tools=[dict({"type": "function", "function": function}, **p)])),
        "A tool's function": ("/v1/chat/completions", called, lambda b, p: b.update(
            tools=[{"type": "function", "function": dict(function, **p)}])),
        "A tool of Anthropic's API": ("/v1/messages", called, lambda b, p: b.update(
            tools=[dict({"name": "f", "input_schema": {"type": "object"}}, **p)])),
        "`tool_choice` of Anthropic's API": ("/v1/messages", called, lambda b, p: b.update(
            tools=[{"name": "f", "input_schema": {"type": "object"}}], tool_choice=dict({"type": "auto"}, **p))),
        "A call in a message": ("/v1/chat/completions", called, lambda b, p: b.update(
            messages=HI + [{"role": "assistant", "tool_calls": [dict(call, **p)]}, answer])),
        "A call's function": ("/v1/chat/completions", called, lambda b, p: b.update(
            messages=HI + [{"role": "assistant", "tool_calls": [dict(call, function=dict(call["function"], **p))]},
                           answer])),
        "A block tool_use": ("/v1/messages", called, lambda b, p: b.update(
            messages=HI + [{"role": "assistant", "content": [dict(use, **p)]}, {"role": "user", "content": [result]}])),
        "A block tool_result": ("/v1/messages", called, lambda b, p: b.update(
            messages=HI + [{"role": "assistant", "content": [use]}, {"role": "user", "content": [dict(result, **p)]}])),
        "`reasoning` of OpenAI's APIs": ("/v1/responses", {"model": "tale", "input": "x", "max_output_tokens": 1},
                                         lambda b, p: b.update(reasoning=p)),
        "`thinking` of Anthropic's API": ("/v1/messages", chat, lambda b, p: b.update(
            thinking=dict({"type": "adaptive"}, **p))),
        "A block thinking": ("/v1/messages", called, lambda b, p: b.update(
            messages=HI + [{"role": "assistant", "content": [dict(thought, **p)]}] + HI)),
        "An item reasoning": ("/v1/responses", {"model": called["model"], "max_output_tokens": 1},
                              lambda b, p: b.update(input=HI + [dict(reasoning, **p), spoken] + HI)),
        "A function among the tools of /v1/responses": (
            "/v1/responses", respond, lambda b, p: b.update(tools=[dict(flat, **p)])),
        "A custom tool of /v1/responses": (
            "/v1/responses", respond, lambda b, p: b.update(tools=[dict({"type": "custom", "name": "f"}, **p)])),
        "A namespace of tools of /v1/responses": (
            "/v1/responses", respond,
            lambda b, p: b.update(tools=[dict({"type": "namespace", "name": "n", "tools": [flat]}, **p)])),
        "An item function_call": ("/v1/responses", respond, lambda b, p: b.update(
            input=HI + [dict(item, **p), said])),
        "An item custom_tool_call": ("/v1/responses", respond, lambda b, p: b.update(
            input=HI + [dict({"type": "custom_tool_call", "call_id": "abcdefghi", "name": "f", "input": "x"}, **p),
                        dict(said, type="custom_tool_call_output")])),
        "An item function_call_output or custom_tool_call_output": ("/v1/responses", respond, lambda b, p: b.update(
            input=HI + [item, dict(said, **p)])),
    }
    inside = set(nested) | {"A message of OpenAI's APIs", "A message of Anthropic's API", "Ollama's `options`",
                            "A message of Ollama's API"}
    places.update(nested)
    equal(set(places), set(tables), "tables with a place here")
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder, \
            Daemon(models=(TALE, embedding_model, reranker, classifier, tools_model, make_pair(folder)),
                   placement=None, env=HOST) as d, Gateway(d) as g:
        def ask(title, name, value, want, warned=False):
            path, body, put = places[title]
            body = dict(body)
            put(body, {name: value})
            status, headers, data = g.request("POST", path, body)
            equal(status, want, f"{title}: {path} with {name}={json.dumps(value)}: {data[:300]}")
            if warned:
                check(name in headers.get("x-tandem-warning", ""), f"{title}: a warning of {name}", headers)
            if want == 400:
                check(name in data.decode(), f"{path}: the refusal names {name}", data)
                answer = json.loads(data)
                if path.startswith("/api/"):
                    equal(set(answer), {"error"}, "Ollama's shape")
                elif path.startswith("/v1/messages"):
                    equal((answer["type"], answer["error"]["type"]), ("error", "invalid_request_error"),
                          "Anthropic's shape")
                else:
                    equal(set(answer["error"]), {"message", "type", "param", "code"}, "OpenAI's shape")
                    check(answer["error"]["param"].endswith(name), "param", answer)
        ask("POST /v1/chat/completions", "messages", [dict(say, content="x\0y")], 200)
        for title, rows in tables.items():
            if "image" in title and not os.path.exists(os.path.join(BIN, "tandem-picture-decoder")):
                continue  # a build without pictures
            if title in inside:
                ask(title, "no_such_parameter", 1, 400)
            else:
                ask(title, "no_such_parameter", 1, 200, True)
                ask(title, "guided_json", {"type": "object"}, 400)  # another server's, and another answer without it
                known = [row[0] for row in rows]
                for name, value in OFF.items():
                    # Ollama's own default is not off, and a model's file may recommend another one.
                    loses = "options" in known and name in ("repeat_penalty", "repetition_penalty")
                    if name not in known:
                        ask(title, name, value, 400 if loses else 200)
                        ask(title, name, 0.5, 400)
            for name, kind, accepted, _ in rows:
                if kind == "harmless" and accepted == "anything":
                    for value in ({"a": [1]}, "x", 5, None):
                        ask(title, name, value, 200)
                elif kind == "ignored":
                    for value in ("low", {"a": [1]}, True):
                        ask(title, name, value, 200, True)
                elif kind == "refused":
                    for word in accepted.split(", "):
                        ask(title, name, neutral[word], 200)
                    ask(title, name, None, 200)
                    ask(title, name, {"a": "nonsense"}, 400)
                elif accepted == "a string":
                    ask(title, name, 5, 400)
                elif accepted != "a value":
                    ask(title, name, "nonsense", 400)
                    if accepted[0].isdigit() and " to " in accepted:
                        ask(title, name, float(accepted.split(" to ")[1]) + 1, 400)


@test
def other_servers_words():
    """repeat_penalty is repetition_penalty on OpenAI's paths, and max_tokens -1 is no limit."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        def text(**more):
            return g.post("/v1/completions", dict(GREEDY, **more))["choices"][0]["text"]
        plain, penalised = text(max_tokens=60), text(max_tokens=60, repetition_penalty=1.5)
        check(plain != penalised, "a penalty changes the text", plain)
        equal(text(max_tokens=60, repeat_penalty=1.5), penalised, "its other name")
        equal(text(max_tokens=60, repeat_penalty=1.0), plain, "off")
        equal(text(max_tokens=60, repeat_penalty=1.0, repetition_penalty=1.5), penalised, "both")
        end = plain[-12:]
        check(end not in plain[:-12], "this model's text", plain)
        choice = g.post("/v1/completions", dict(GREEDY, max_tokens=-1, stop=end))["choices"][0]
        equal((choice["text"], choice["finish_reason"]), (plain[:-12], "stop"), "more than the 16 of the default")
        for name in ("max_tokens", "max_completion_tokens"):
            body = {"model": "tale", "messages": HI, "temperature": 0, "stop": "."}
            equal(g.post("/v1/chat/completions", dict(body, **{name: -1}))["choices"],
                  g.post("/v1/chat/completions", body)["choices"], f"{name} -1")
            for value in (0, -2):
                error = g.post("/v1/chat/completions", dict(body, **{name: value}), 400)["error"]
                equal((error["code"], error["param"]), ("invalid_value", name), f"{name} {value}")
        equal(g.post("/v1/chat/completions", dict(body, max_tokens=5, max_completion_tokens=-1))["choices"],
              g.post("/v1/chat/completions", body)["choices"], "-1 goes before max_tokens, too")


main()
