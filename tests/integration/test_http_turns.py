"""Conversations over several turns through the HTTP doors: an answer that the request has begun, and what of earlier
turns is cached."""
import json

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import FakeDaemon, Gateway, head, own_ip, read_all  # noqa: E402
from tandem_test import *  # noqa: E402,F403

ASK = [{"role": "user", "content": "Tell me a story about a fox."}]
SPELT = f"<start_of_turn>user\n{ASK[0]['content']}<end_of_turn>\n<start_of_turn>model\n"
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
PATHS = (CHAT, RESPONSES, MESSAGES, OLLAMA)


def body_of(path, messages, n=12, **more):
    """A greedy request for n tokens."""
    body = {"model": "tale", ("input" if path == RESPONSES else "messages"): messages}
    if path == OLLAMA:
        return dict(body, stream=False, options={"num_predict": n, "temperature": 0, "repeat_penalty": 1}, **more)
    return dict(body, temperature=0, **{"max_output_tokens" if path == RESPONSES else "max_tokens": n}, **more)


def text_of(path, answer):
    if path == CHAT:
        return answer["choices"][0]["message"]["content"]
    if path == OLLAMA:
        return answer["message"]["content"]
    content = answer["output"][-1]["content"] if path == RESPONSES else answer["content"]
    return "".join(part["text"] for part in content)


@test
def begun():
    """A last message of the assistant's is gone on with, as the same prompt spelt out; the answer is what is new."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        for said in ("Once upon a time", "The"):
            want = g.post("/v1/completions", {"model": "tale", "prompt": SPELT + said, "max_tokens": 12,
                                              "temperature": 0})["choices"][0]["text"]
            begun = ASK + [{"role": "assistant", "content": said}]
            for path in PATHS:
                equal(text_of(path, g.post(path, body_of(path, begun))), want, f"{path}: going on with {said!r}")
        blocks = ASK + [{"role": "assistant", "content": [{"type": "text", "text": "The"}]}]
        equal(text_of(MESSAGES, g.post(MESSAGES, body_of(MESSAGES, blocks))), want, "a block")
        for more in ({"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False},
                     {"add_generation_prompt": False}, {"add_generation_prompt": True}):
            equal(text_of(CHAT, g.post(CHAT, body_of(CHAT, begun, **more))), want, more)
        for messages, more, part in ((begun, {"continue_final_message": False}, "with which the model goes on"),
                                     (ASK, {"continue_final_message": True}, "is not the assistant's"),
                                     (ASK, {"add_generation_prompt": False}, "is not the assistant's")):
            error = g.post(CHAT, body_of(CHAT, messages, **more), 400)["error"]
            check(part in error["message"] and error["param"] == list(more)[0], more, error)
        called = ASK + [{"role": "assistant", "content": "x", "tool_calls": [
            {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]
        check("answer its calls" in g.post(CHAT, body_of(CHAT, called), 400)["error"]["message"], "a call")


# ---- cached turns

PAGE = 32  # positions that the prefix cache keeps together
TOOL = {"name": "look", "description": "Looks at a thing.", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"sky\"}"}}


def signature(text):
    parts = [0xcbf29ce484222325, 0x84222325cbf29ce4]
    for byte in text.encode():
        parts = [(h ^ byte ^ flip) * 0x100000001b3 % 2**64 for h, flip in zip(parts, (0, 255))]
    return "tandem1-" + "".join(f"{h:016x}" for h in parts)


def items_of(m):
    """A message of chat completions as items of /v1/responses."""
    if m["role"] == "tool":
        return [{"type": "function_call_output", "call_id": m["tool_call_id"], "output": m["content"]}]
    out = [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": m["reasoning_content"]}]}
           ] if "reasoning_content" in m else []
    if m["content"]:
        out.append({"role": m["role"], "content": m["content"]})
    return out + [{"type": "function_call", "call_id": c["id"], **c["function"]} for c in m.get("tool_calls", [])]


def blocks_of(m):
    """The same as a message of Anthropic's."""
    if m["role"] == "tool":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m["tool_call_id"],
                                             "content": m["content"]}]}
    thought = m.get("reasoning_content", "")
    return {"role": m["role"], "content":
            [{"type": "thinking", "thinking": thought, "signature": signature(thought)}] * bool(thought) +
            [{"type": "text", "text": m["content"]}] * bool(m["content"]) +
            [{"type": "tool_use", "id": c["id"], "name": c["function"]["name"],
              "input": json.loads(c["function"]["arguments"])} for c in m.get("tool_calls", [])]}


def said_to(path, messages, tools, n):
    """A conversation in the form of chat completions as a request of another API."""
    functions = [{"type": "function", "function": t} for t in tools]
    if path == CHAT:
        return body_of(path, messages, n, tools=functions)
    if path == RESPONSES:
        return body_of(path, sum((items_of(m) for m in messages), []), n,
                       tools=[dict(t, type="function") for t in tools])
    if path == OLLAMA:
        old = [{"thinking" if k == "reasoning_content" else k: v for k, v in m.items()} for m in messages]
        return body_of(path, old, n, tools=functions)
    return body_of(path, [blocks_of(m) for m in messages[1:]], n, system=messages[0]["content"],
                   tools=[{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]}
                          for t in tools])


def usage_of(path, answer):
    """Tokens of the prompt, and those that were cached; None: the API does not say."""
    if path == OLLAMA:
        return answer["prompt_eval_count"], None
    u = answer["usage"]
    if path == MESSAGES:
        return u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"]
    if path == RESPONSES:
        return u["input_tokens"], u["input_tokens_details"]["cached_tokens"]
    return u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"]


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def conversation(start):
    """A thought with an answer, then a thought with a call, its result, an answer, and one more question."""
    def thinks(thought, text, **more):
        return {"role": "assistant", "content": text, "reasoning_content": thought, **more}
    return [{"role": "system", "content": start + " You look at things and tell what they are like." * 3},
            {"role": "user", "content": "What is the sea like?"},
            thinks("The sea is large. I know that without a look at it.", "It is wide."),
            {"role": "user", "content": "And the sky, which is above the sea and above the land?"},
            thinks("I have to look at it first, since it changes all the time.", "", tool_calls=[CALL]),
            {"role": "tool", "tool_call_id": CALL["id"], "content": "It is grey today, and the clouds are low."},
            thinks("Grey means rain.", "It is grey, and it may rain before the evening comes."),
            {"role": "user", "content": "Thank you. Is it like that often?"}]


@test
def cached():
    """Each turn has all whole pages cached that it has in common with an earlier one, also where the template drops the
    thoughts of earlier turns. Each API makes the same prompt, and says how much of it was cached."""
    model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    name = os.path.basename(model)[:-len(".gguf")]
    known, most = [], 0
    with Daemon(models=(model,), placement=None) as d, Gateway(d) as g:
        for path in PATHS:
            for tools in ([], [TOOL]):
                said = conversation(f"{path} {len(tools)}.")
                for n in [i for i, m in enumerate(said) if m["role"] in ("user", "tool")]:
                    if not tools and n > 3:
                        break
                    shown = {"messages": said[:n + 1], "tools": [{"type": "function", "function": t} for t in tools]}
                    if not tools:
                        del shown["tools"]
                    ids = d.cli_json("render", "-m", name, "--json", input=json.dumps(shown).encode())[0]["ids"]
                    before = d.status().get("cached_tokens", 0)
                    # One token: it is told and not read, so what is cached is the prompt alone.
                    answer = g.post(path, dict(said_to(path, said[:n + 1], tools, 1), model=name))
                    want = max([common(ids, k) for k in known], default=0)
                    want = min(want, len(ids) - 1) // PAGE * PAGE
                    got, hits = usage_of(path, answer), d.status().get("cached_tokens", 0) - before
                    what = f"{path}, {len(tools)} tools, {n + 1} messages"
                    if path == MESSAGES:
                        asked = {k: v for k, v in said_to(path, said[:n + 1], tools, 1).items()
                                 if k not in ("temperature", "max_tokens")}
                        equal(g.post(path + "/count_tokens", dict(asked, model=name))["input_tokens"], len(ids),
                              f"{what}: count_tokens")
                    equal(got[0], len(ids), f"{what}: tokens of the prompt")
                    equal(hits, want, f"{what}: cached")
                    check(got[1] in (want, None), f"{what}: cached tokens that are told", got, want)
                    known.append(ids)
                    most = max(most, want)
        check(most > 8 * PAGE, "some of it was cached", most)


@test
def cached_answer():
    """An answer without thoughts is cached as far as its tokens are those of the next turn's prompt."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        for path in PATHS:
            first = [{"role": "user", "content": path + " Tell me a long story about a fox and a king. " * 4}]
            said = text_of(path, g.post(path, body_of(path, first, 60)))
            turn = first + [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
            before = d.status().get("cached_tokens", 0)
            g.post(path, body_of(path, turn, 1))
            got = d.status().get("cached_tokens", 0) - before
            prompts = [d.cli_json("render", "--json", input=json.dumps(m).encode())[0]["ids"] for m in (first, turn)]
            made = d.start_job(chat=[("user", first[0]["content"])], n=60).wait().ids
            same = common(prompts[0] + made[:-1], prompts[1])
            check(same > len(prompts[0]), "the answer is a part of it", same)
            equal(got, same // PAGE * PAGE, f"{path}: cached, of {same} tokens in common")


# ---- what llama-server and older clients have


@test
def props():
    """The default model's context, one's own jobs and no other's, and no path."""
    with Daemon(models=(TALE, SPROUT), placement=None, hang_ms=STANDING_MS) as d, Gateway(d) as g:
        g.post(CHAT, body_of(CHAT, ASK, 1))
        got = g.get("/props")
        model = next(m for m in d.status()["models"] if m["name"] == "tale")
        equal(g.get("/props?model=tale"), got, "the default model by its name")
        g.post(CHAT, dict(body_of(CHAT, ASK, 1), model="sprout"))
        other = next(m for m in d.status()["models"] if m["name"] == "sprout")
        named = g.get("/props?model=sprout")
        equal((named["default_generation_settings"]["n_ctx"], named["model_alias"]), (other["context"], "sprout"),
              "another model")
        for path in ("/props?model=ghost", "/slots?model=ghost", "/props?model=" + "x" * 300):
            error = g.get(path, 404)["error"]
            equal((error["code"], error["param"]), ("model_not_found", "model"), path[:20])
        equal((got["default_generation_settings"]["n_ctx"], got["model_alias"], got["model_path"]),
              (model["context"], "tale", "tale.gguf"), "props")
        equal((g.get("/slots"), got["total_slots"]), ([], 1), "nothing runs")
        with d.in_midst(dict(n=3000), dict(n=3000), tokens=2) as jobs:
            equal([g.get("/props" + q)["total_slots"] for q in ("", "?model=tale", "?model=sprout")], [2, 2, 1],
                  "own jobs of the model")
            for job in jobs:
                job.vanish()
        wait_for(lambda: g.get("/slots") == [], "they have gone")
        with d.in_midst(dict(n=3000), tokens=2):
            slot, = g.get("/slots")
            equal([[s["id_task"] for s in g.get(f"/slots?model={m}")] for m in ("tale", "sprout")],
                  [[slot["id_task"]], []], "the jobs of one model")
            equal((slot["model"], slot["is_processing"], slot["n_ctx"]), ("tale", True, model["context"]), "a job")
            check(slot["next_token"][0]["n_decoded"] >= 2 and slot["n_prompt_tokens"] > 0, "how far it is", slot)
            with open(os.path.join(d.dir, "keys"), "w") as f:
                f.write("sk-one-key\n")
            os.chmod(os.path.join(d.dir, "keys"), 0o600)
            with Gateway(d, "--api-key-file", os.path.join(d.dir, "keys")) as other:
                other.key = "sk-one-key"
                equal(other.get("/slots"), [], "another owner's job is not shown")
                body = json.dumps(body_of(CHAT, ASK, 3000, stream=True)).encode()
                with other.connect() as s:
                    s.sendall(head("POST", CHAT, f"Content-Length: {len(body)}",
                                   "Authorization: Bearer sk-one-key") + body)
                    theirs, = wait_for(lambda: other.get("/slots"), "a job of the key's owner")
                    own = [slot["id_task"] for slot in g.get("/slots")]
                    check(theirs["id_task"] not in own, "nor the other way round", theirs, own)


@test
def slots_of_networks():
    """Without keys all jobs are the gateway's user's, and another network than this machine sees its own alone."""
    own = own_ip()
    if own.startswith("127."):
        raise Skip("this machine has no address but the loopback's")
    with Daemon(placement=None, hang_ms=STANDING_MS) as d, \
            Gateway(d, "--without-keys", listen="0.0.0.0:0") as g:
        def seen(path):
            """What the network of this machine's other address sees."""
            with socket.create_connection((own, g.port), timeout=60 * SLOW) as s:
                s.sendall(head("GET", path, "Connection: close", host=own))
                return json.loads(read_all(s).partition(b"\r\n\r\n")[2])
        with d.in_midst(dict(n=3000), tokens=2):
            job, = g.get("/slots")
            equal((seen("/slots"), seen("/props")["total_slots"]), ([], 1),
                  "another network sees no job of the machine")
            body = json.dumps(body_of(CHAT, ASK, 3000, stream=True)).encode()
            with socket.create_connection((own, g.port)) as s:
                s.sendall(head("POST", CHAT, f"Content-Length: {len(body)}", host=own) + body)
                theirs, = wait_for(lambda: seen("/slots"), "its own job")
                check(theirs["id_task"] != job["id_task"], "not the other one", theirs)
                both = {s["id_task"] for s in g.get("/slots")}
                equal(both, {theirs["id_task"], job["id_task"]}, "this machine sees both")


@test
def echo():
    """The prompt stands in front of each choice, whole and streamed."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "prompt": [PROMPT, "The \u00e4"], "n": 2, "max_tokens": 6, "temperature": 0}
        plain = [c["text"] for c in g.post("/v1/completions", body)["choices"]]
        want = [p + t for p, t in zip([PROMPT] * 2 + ["The \u00e4"] * 2, plain)]
        equal([c["text"] for c in g.post("/v1/completions", dict(body, echo=True))["choices"]], want, "whole")
        parts = [""] * 4
        for _, e in g.events("/v1/completions", dict(body, echo=True)):
            for c in e["choices"] if isinstance(e, dict) else ():
                parts[c["index"]] += c["text"]
        equal(parts, want, "streamed")
        for more in ({"logprobs": 1}, {"prompt": [1, 2, 3]}):
            error = g.post("/v1/completions", dict(body, echo=True, **more), 400)["error"]
            equal((error["param"], error["code"]), ("echo", "unsupported_parameter"), more)


@test
def variables():
    """chat_template_kwargs: the template's switch, its other variables, and names that it does not read."""
    model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    name = os.path.basename(model)[:-len(".gguf")]
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        def asked(want=200, **more):
            data = g.post(CHAT, body_of(CHAT, ASK, **more), want)
            return data["error"] if want != 200 else (fake.asked[-1].get("thinking", "THINKING_AUTO")[9:],
                                                      json.loads(fake.asked[-1].get("chat_variables", "null")))
        for given, want in (({}, ("AUTO", None)), (None, ("AUTO", None)), ({"enable_thinking": False}, ("OFF", None)),
                            ({"thinking": True}, ("ON", None)), ({"reasoning_effort": "low"}, ("LOW", None)),
                            ({"enable_thinking": None, "a": {"b": [1]}}, ("AUTO", {"a": {"b": [1]}}))):
            equal(asked(chat_template_kwargs=given), want, given)
        equal(asked(chat_template_kwargs={"enable_thinking": True}, reasoning_effort="high")[0], "HIGH", "both, agreed")
        for given, more, part in (({"enable_thinking": False}, {"reasoning_effort": "low"}, "contradicts"),
                                  ({"reasoning_effort": "high"}, {"reasoning_effort": "low"}, "contradicts"),
                                  ({"enable_thinking": "no"}, {}, "not true or false"),
                                  ([1], {}, "has to be an object")):
            error = asked(400, chat_template_kwargs=given, **more)
            check(part in error["message"] and error["param"] == "chat_template_kwargs", given, error)
    with Daemon(models=(TALE, model), placement=None) as d, Gateway(d) as g:
        def tokens(want=200, model=name, **given):
            data = g.post(CHAT, dict(body_of(CHAT, ASK, 1, chat_template_kwargs=given), model=model), want)
            return data["usage"]["prompt_tokens"] if want == 200 else data["error"]
        plain = tokens()
        equal(tokens(no_such=1), plain, "what the template does not read")
        check(tokens(enable_thinking=False) > plain, "the switch is in the prompt")
        for path, n in (("/v1/messages/count_tokens", lambda a: a["input_tokens"]),
                        ("/v1/responses", lambda a: a["usage"]["input_tokens"]),
                        ("/api/chat", lambda a: a["prompt_eval_count"])):
            body = {"model": name, **({"input": ASK} if path == "/v1/responses" else
                                      {"messages": ASK}),
                    **({"stream": False, "options": {"num_predict": 1}} if path == "/api/chat" else {})}
            body.update({"max_output_tokens": 1} if path == "/v1/responses" else {})
            equal(n(g.post(path, body)), plain, path)
            equal(n(g.post(path, dict(body, chat_template_kwargs={"enable_thinking": False}))),
                  tokens(enable_thinking=False), f"{path}: the switch is in the prompt")
        for given in ({"messages": []}, {"bos_token": "x"}, {"x": "y" * 70000}):
            error = tokens(400, **given)
            equal(error["param"], "chat_template_kwargs", str(given)[:40])
        equal(tokens(model="tale", enable_thinking=False), tokens(model="tale"), "a model that does not think")


@test
def results():
    """What a tool answers is text; an image in it that is none is refused by its place."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    use = {"type": "tool_use", "id": "abcdefghi", "name": "look", "input": {}}
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        def asked(content, want):
            result = {"type": "tool_result", "tool_use_id": "abcdefghi", "content": content}
            blocks = [{"type": "text", "text": "Here."}, result]
            return g.post(MESSAGES, body_of(MESSAGES, ASK + [{"role": "assistant", "content": [use]},
                                                             {"role": "user", "content": blocks}]), want)
        asked([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], 200)
        said = [(m["role"], m["text"]) for m in fake.asked[-1]["chat"][2:]]
        equal(said, [("tool", b"a\nb"), ("user", b"Here.")], "text")
        error = asked([{"type": "text", "text": "a"}, image], 400)["error"]["message"]
        check("'messages[2].content[1].content[1].source.data' is no base64" in error, "an image", error)


main()
